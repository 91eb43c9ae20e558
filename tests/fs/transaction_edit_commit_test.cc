// Commits of edits in a transaction's directory: they are atomic, also beside other commits and in faults.
#include <linux/fs.h>
#include <sys/xattr.h>

#include <atomic>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "tests/fs/driven_model.h"
#include "tests/fs/edited_transaction.h"
#include "tests/support/catch.h"
#include "tests/support/child_process.h"
#include "tests/support/faulty_storage.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE_METHOD(EditedTransaction, "patches and edits are one commit", "[fs][transaction_edit]") {
  Member patch(t.mount, directory, "third", O_RDWR);
  CHECK(patch.write("patched", 100) == 0);
  CHECK(patch.close() == 0);
  CHECK(t.stage(directory, "first") == 0);
  CHECK(move("first", "moved") == 0);
  CHECK(remove("second") == 0);
  CHECK(make("made", "made") == 0);
  CHECK(set_metadata("k", "v") == 0);
  const auto generation = t.mount.generation("third");
  const Ino file = t.mount.ino("third");
  const Ino first = t.mount.ino("first");
  const auto outdated = t.mount->rename(kTransactions, "T", kCommitted, "T");
  REQUIRE(outdated);
  CHECK_FALSE(outdated->stale.empty());
  std::string third = kThird;
  third.replace(100, 7, "patched");
  CHECK(stored() == Stored{{"moved", kNew}, {"third", third}, {"made", "made"}});
  CHECK(t.mount.read("third") == third);
  // A program that has the files open sees the new bytes.
  CHECK(t.mount.ino("third") == file);
  CHECK(t.mount.ino("moved") == first);
  CHECK(std::ranges::any_of(outdated->stale, [&](const Stale& stale) {
    return stale.first == file && stale.what == Stale::What::Content;
  }));
  CHECK(t.mount.generation("third") > generation);
  CHECK(metadata(kRootIno, "k") == "v");
  t.mount->tidy();
  t.mount->end();
  CHECK(stored() == Stored{{"moved", kNew}, {"third", third}, {"made", "made"}});
}

TEST_CASE("the space that a patched tensor has left is given back", "[fs][transaction_edit]") {
  constexpr std::size_t kLarge = 4 << 20;
  const Transacted t({}, system_storage(), {{"large", std::string(kLarge, 'l')}, {"small", "s"}});
  const auto blocks = [&] {
    struct stat st {};
    REQUIRE(::stat(t.mount.path().c_str(), &st) == 0);
    return static_cast<std::uint64_t>(st.st_blocks) * 512;
  };
  const Ino directory = t.begin();
  REQUIRE(t.stage(directory, "large", std::string(kLarge, 'n')) == 0);
  REQUIRE(t.mount->rename(directory, "small", directory, "renamed"));
  REQUIRE(t.commit() == 0);
  CHECK(blocks() > kLarge + kLarge / 2);
  t.mount->tidy();
  CHECK(blocks() < kLarge + kLarge / 2);
  CHECK(t.mount.read("large") == std::string(kLarge, 'n'));
}

TEST_CASE_METHOD(EditedTransaction,
                 "a removal of all files and of the directory leaves the archive byte by byte",
                 "[fs][transaction_edit]") {
  const std::string before = bytes();
  CHECK(t.stage(directory, "third", kThird) == 0);
  CHECK(move("first", "x") == 0);
  CHECK(make("first", "new") == 0);
  CHECK(move("third", "second") == 0);
  CHECK(move("second", "first", RENAME_EXCHANGE) == 0);
  CHECK(move("x", "third") == 0);
  CHECK(remove("second") == 0);
  CHECK(make("second", "again") == 0);
  CHECK(set("second", "dtype", "I8") == 0);
  CHECK(set_metadata("k", "v") == 0);
  CHECK(errno_of(t.mount->remove_directory(kTransactions, "T")) == ENOTEMPTY);
  roll_back();
  CHECK(bytes() == before);
  t.mount->end();
  CHECK(bytes() == before);
}

TEST_CASE_METHOD(EditedTransaction, "edits of others since are conflicts, and nothing changes",
                 "[fs][transaction_edit]") {
  make_room(t.mount);
  const int due = ESTALE;
  SECTION("a removed tensor was removed") {
    CHECK(remove("first") == 0);
    REQUIRE(t.mount->remove_file(kRootIno, "first"));
    CHECK(t.commit() == due);
    CHECK(t.captured.contains("tensor \"first\" was deleted or replaced by another program"));
  }
  SECTION("a renamed tensor was renamed") {
    CHECK(move("first", "x") == 0);
    REQUIRE(t.mount->rename(kRootIno, "first", kRootIno, "y"));
    CHECK(t.commit() == due);
    CHECK(t.captured.contains("tensor \"first\" was renamed by another program"));
  }
  SECTION("a retyped tensor was retyped") {
    CHECK(set("second", "dtype", "F32") == 0);
    REQUIRE(t.mount->set_extended_attribute(t.mount.ino("second"), "user.safetensors.dtype", "I32"));
    CHECK(t.commit() == due);
    CHECK(t.captured.contains("tensor \"second\" was given another dtype or shape"));
  }
  SECTION("a patched tensor was patched") {
    CHECK(remove("second") == 0);
    CHECK(t.stage(directory, "third", kThird) == 0);
    t.mount.overwrite(t.mount->model().file_range(InodeTable::tensor(t.mount.ino("third"))).offset, "x");
    CHECK(t.commit() == due);
    CHECK(t.captured.contains("tensor \"third\" was changed by another program"));
  }
  SECTION("a new name is taken") {
    CHECK(make("new", "new") == 0);
    WrittenFile other(t.mount, "new");
    CHECK(other.write("other") == 0);
    CHECK(other.save() == 0);
    CHECK(t.commit() == due);
    CHECK(t.captured.contains("another program has made a tensor \"new\" since"));
    CHECK(t.mount.read("new") == "other");
    CHECK(move("new", "newer") == 0);  // corrected
    CHECK(t.commit() == 0);
    CHECK(stored().at("newer") == "new");
    return;
  }
  const Stored before = stored();
  CHECK(t.commit() == due);
  CHECK(stored() == before);
  CHECK(t.list(kTransactions) == Names{"T"});
  roll_back();
  CHECK(stored() == before);
}

TEST_CASE_METHOD(EditedTransaction, "a tensor that a program is writing outside is not replaced",
                 "[fs][transaction_edit]") {
  CHECK(move("first", "second") == 0);
  {
    Descriptor writer(t.mount, "second", O_WRONLY);
    REQUIRE(writer.write("x", 0));
    CHECK(t.commit() == EBUSY);
    CHECK(t.captured.contains("\"second\" can't be replaced"));
  }
  CHECK(t.commit() == 0);
  CHECK(stored() == Stored{{"second", kOld}, {"third", kThird}});
}

TEST_CASE_METHOD(EditedTransaction, "an open file is busy: its transaction, its removal and its replacement",
                 "[fs][transaction_edit]") {
  {
    WrittenFile file(t.mount, "new", directory);
    CHECK(file.write("new") == 0);
    CHECK(t.commit() == EBUSY);
    CHECK(remove("new") == EBUSY);
    CHECK(move("first", "new") == EBUSY);
    CHECK(move("new", "newer") == 0);
    CHECK(file.write("er", 3) == 0);
    CHECK(file.save() == 0);
  }
  CHECK(t.commit() == 0);
  CHECK(stored().at("newer") == "newer");
}

TEST_CASE_METHOD(EditedTransaction, "a new file whose writer was killed is not committed, and may be removed",
                 "[fs][transaction_edit]") {
  const ChildProcess killed(ChildProcess::Fate::IsKilled);
  const auto made = t.mount->create(directory, "new", O_WRONLY, killed.pid()).value();
  REQUIRE(t.mount->write(*made.file, bytes_of("half"), 0, Caller(5, killed.pid())));
  static_cast<void>(t.mount->flush(*made.file, 5, killed.pid()));
  static_cast<void>(t.mount->release(made.file));
  CHECK(remove("second") == 0);
  CHECK(t.commit() == EIO);
  CHECK(stored() == kStoredThree);
  CHECK(remove("new") == 0);
  CHECK(t.commit() == 0);
  CHECK(stored() == Stored{{"first", kOld}, {"third", kThird}});
}

TEST_CASE_METHOD(EditedTransaction, "bytes alone follow a tensor that others rename",
                 "[fs][transaction_edit]") {
  make_room(t.mount);
  CHECK(t.stage(directory, "third", kThird) == 0);
  CHECK(t.stage(directory, "first") == 0);
  REQUIRE(t.mount->rename(kRootIno, "first", kRootIno, "renamed"));
  CHECK(t.commit() == 0);
  CHECK(stored() == Stored{{"renamed", kNew}, {"second", kSecond}, {"third", kThird}});
}

TEST_CASE_METHOD(EditedTransaction, "edits that were never committed are logged when the mount ends",
                 "[fs][transaction_edit]") {
  const std::string before = bytes();
  CHECK(remove("second") == 0);
  t.mount->end();
  CHECK(t.captured.contains("transaction T was not committed when the mount ended"));
  CHECK(bytes() == before);
}

TEST_CASE("without edits a transaction still takes patches, and gives them back", "[fs][transaction_edit]") {
  MountedModelOptions options;
  options.allows_edits = false;
  const EditedTransaction at(options);
  CHECK(at.remove("first") == EPERM);
  CHECK(at.move("first", "x") == EPERM);
  CHECK(errno_of(at.t.mount->create(at.directory, "x", O_WRONLY, ::getpid())) == EPERM);
  CHECK(at.set("first", "dtype", "F32") == EPERM);
  CHECK(at.set_metadata("k", "v") == EPERM);
  CHECK(at.t.stage(at.directory, "first") == 0);
  CHECK(at.t.stage(at.directory, "second") == 0);
  CHECK(at.remove("second") == 0);
  CHECK(at.t.commit() == 0);
  CHECK(at.stored() == Stored{{"first", kNew}, {"second", kSecond}, {"third", kThird}});
}

TEST_CASE("an edit in a transaction needs the right to write every shard", "[fs][transaction_edit]") {
  MountedModelOptions options;
  options.is_shared = true;
  options.uid = 4000;
  options.gid = 5000;
  const Transacted t(options, system_storage(), kThree);
  const auto remove_as = [&](std::string_view name, const Maker& maker) {
    const Ino directory = t.mount->make_directory(kTransactions, name, maker)->st_ino;
    return errno_of(t.mount->remove_file(directory, "first"));
  };
  std::filesystem::permissions(t.mount.path(), std::filesystem::perms{0664});
  static_cast<void>(t.mount->check_for_change());
  CHECK(remove_as("owner", {.uid = 4000, .gid = 1}) == 0);
  CHECK(remove_as("root", {.uid = 0, .gid = 0}) == 0);
  CHECK(remove_as("group", {.uid = 1, .gid = 5000}) == 0);
  CHECK(remove_as("groups", {.uid = 1, .gid = 1, .other_groups = {7, 5000}}) == 0);
  CHECK(remove_as("other", {.uid = 1, .gid = 1}) == EACCES);
}

TEST_CASE("a commit of edits fails at any step with nothing changed, or all", "[fs][transaction_edit]") {
  const Stored all = {{"moved", kNew}, {"third", kThird}, {"made", "made"}};
  unsigned failures = 0;
  for (unsigned nth = 1;; ++nth) {
    FaultyStorage storage;
    EditedTransaction at({}, storage);
    REQUIRE(at.t.stage(at.directory, "first") == 0);
    REQUIRE(at.move("first", "moved") == 0);
    REQUIRE(at.remove("second") == 0);
    REQUIRE(at.make("made", "made") == 0);
    storage.plan().fail_call(nth, ENOSPC);
    const int verdict = at.t.commit();
    const auto failed = storage.plan().failed();
    storage.plan().fail_call(0, 0);
    CAPTURE(nth, verdict);
    at.t.mount.close();
    at.t.mount.open();
    const Stored found = at.stored();
    CHECK((found == kStoredThree || found == all));
    if (verdict == 0) CHECK(found == all);
    if (!failed) {
      CHECK(verdict == 0);
      break;
    }
    ++failures;
  }
  CHECK(failures > 20);
}

TEST_CASE("random edits in a transaction show inside, and are what its commit leaves",
          "[fs][transaction_edit]") {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    EditedTransaction at;
    const std::string before = at.bytes();
    Stored due = kStoredThree;
    const Names pool = {"first", "second", "third", "d", "e", "f", "g"};
    const auto pick = [&] { return pool[random() % pool.size()]; };
    for (unsigned step = 0; step < 25; ++step) {
      const std::string name = pick();
      const std::string other = pick();
      const Names listed = at.listed();
      const bool is_listed = std::ranges::find(listed, name) != listed.end();
      switch (random() % 5) {
        case 0:
          if (due.contains(name) && !is_listed) {
            REQUIRE(at.remove(name) == 0);
            due.erase(name);
          }
          break;
        case 1:
          if (!due.contains(name)) {
            due[name] = fmt::format("{} at {}", name, step);
            REQUIRE(at.make(name, due[name]) == 0);
            REQUIRE(at.set(name, "shape", fmt::format("[{}]", due[name].size())) == 0);
          }
          break;
        case 2:
          if (due.contains(name)) {
            due[name].replace(0, 1, std::to_string(step % 10));
            Member file(at.t.mount, at.directory, name, O_RDWR);
            REQUIRE(file.write(due[name].substr(0, 1), 0) == 0);
            REQUIRE(file.close() == 0);
          }
          break;
        case 3:
          REQUIRE(at.move(name, other) == (due.contains(name) ? 0 : ENOENT));
          if (due.contains(name) && name != other) {
            due[other] = due[name];
            due.erase(name);
          }
          break;
        default:
          if (due.contains(name) && due.contains(other)) {
            REQUIRE(at.move(name, other, RENAME_EXCHANGE) == 0);
            std::swap(due[name], due[other]);
          }
      }
      for (const std::string& each : pool) {
        CAPTURE(step, each);
        REQUIRE(at.has(each) == due.contains(each));
        if (due.contains(each)) REQUIRE(at.t.read(at.directory, each) == due[each]);
      }
    }
    REQUIRE(at.bytes() == before);
    if (seed % 3 == 0) {
      at.roll_back();
      REQUIRE(at.bytes() == before);
      continue;
    }
    REQUIRE(at.t.commit() == 0);
    REQUIRE(at.stored() == due);
    for (const auto& [name, bytes] : due) REQUIRE(at.t.mount.read(name) == bytes);
  }
}

TEST_CASE("transactions are staged and committed while others read, list and edit",
          "[fs][transaction_edit]") {
  constexpr int kSteps = 40;
  const Transacted t({}, system_storage(), kThree);
  make_room(t.mount);
  MountedModel& filesystem = *t.mount;
  std::atomic<bool> is_over = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> others;
  others.emplace_back([&] {
    while (!is_over) {
      const auto pin = filesystem.pin();
      std::vector<Ino> directories = {kRootIno, kTransactions, kCommitted};
      static_cast<void>(
          filesystem.read_directory(kTransactions, 2, [&](std::string_view, Ino ino, std::uint64_t) {
            directories.push_back(ino);
            return true;
          }));
      std::vector<Ino> files;
      for (const Ino directory : directories) {
        const auto read =
            filesystem.read_directory(directory, 2, [&](std::string_view, Ino ino, std::uint64_t) {
              files.push_back(ino);
              return true;
            });
        if (!read && read.error().errno_value != ENOENT) ++wrong;
        static_cast<void>(filesystem.list_extended_attributes(directory));
      }
      for (const Ino file : files) {
        static_cast<void>(filesystem.attributes(file));
        static_cast<void>(filesystem.extended_attribute(file, "user.safetensors.shape"));
        const auto bytes = filesystem.read(file, 0, 1 << 20);
        if (bytes) static_cast<void>(bytes->copy());
      }
    }
  });
  others.emplace_back([&] {
    for (int step = 0; !is_over; ++step) {
      const auto pin = filesystem.pin();
      static_cast<void>(filesystem.set_extended_attribute(kRootIno, "user.safetensors.metadata.step",
                                                          std::to_string(step)));
      filesystem.tidy();
    }
  });
  others.emplace_back([&] {  // a separate transaction
    for (int step = 0; !is_over; ++step) {
      const auto pin = filesystem.pin();
      const auto made = filesystem.make_directory(kTransactions, "other");
      if (!made) continue;
      static_cast<void>(filesystem.remove_file(made->st_ino, "second"));
      static_cast<void>(filesystem.rename(made->st_ino, "third", made->st_ino, "second"));
      static_cast<void>(filesystem.remove_file(made->st_ino, "second"));
      if (!filesystem.remove_directory(kTransactions, "other")) ++wrong;
    }
  });
  for (int step = 0; step < kSteps; ++step) {
    const auto pin = filesystem.pin();
    const std::string name = fmt::format("T{}", step);
    const Ino directory = t.begin(name);
    {
      WrittenFile file(t.mount, fmt::format("made{}", step), directory);
      REQUIRE(file.write("made") == 0);
      REQUIRE(file.save() == 0);
    }
    REQUIRE(t.stage(directory, "first", std::string(16, static_cast<char>('a' + step % 26))) == 0);
    if (step > 0) REQUIRE(t.mount->remove_file(directory, fmt::format("made{}", step - 1)));
    REQUIRE(t.commit(name) == 0);
  }
  is_over = true;
  for (std::thread& other : others) other.join();
  CHECK(wrong == 0);
  CHECK(stored_tensors(t.mount) ==
        Stored{{"first", std::string(16, static_cast<char>('a' + (kSteps - 1) % 26))},
               {"second", kSecond},
               {"third", kThird},
               {fmt::format("made{}", kSteps - 1), "made"}});
}
