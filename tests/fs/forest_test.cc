// Several models in one mount: every number leads to its own.
#include "fs/model/forest.h"

#include <algorithm>
#include <chrono>
#include <fstream>

#include "tests/fs/driven_model.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

struct TwoModels {
  TwoModels() {
    std::vector<Forest::Member> members;
    members.push_back({.name = "one", .filesystem = first.take()});
    members.push_back({.name = "two", .filesystem = second.take()});
    members.push_back({.name = "bad", .why_absent = Error{ErrorCode::System, ENOENT, "bad: gone"}});
    forest = std::make_unique<Forest>(std::move(members));
  }
  [[nodiscard]] Ino ino(std::initializer_list<std::string_view> path) const {
    Ino at = kRootIno;
    for (const std::string_view name : path) at = forest->lookup(at, name).value().st_ino;
    return at;
  }
  [[nodiscard]] std::string content(Ino ino) const {
    return text_of(forest->model_of(ino)->read(ino, 0, 1 << 20).value().copy().value());
  }

  DrivenModel first;
  DrivenModel second;
  std::unique_ptr<Forest> forest;
};

}  // namespace

TEST_CASE("a lone model has the numbers of its file system", "[fs][forest]") {
  DrivenModel model;
  const Ino c = model.ino("c");
  Forest forest({.name = "", .filesystem = model.take()});
  CHECK(forest.lookup(kRootIno, "c")->st_ino == c);
  CHECK(forest.attributes(kRootIno)->st_ino == kRootIno);
  CHECK(errno_of(forest.attributes(Ino{1} << 50U | kRootIno)) == ENOENT);
}

TEST_CASE("each model of a directory has its own tree, views and transactions", "[fs][forest]") {
  const TwoModels mount;
  Forest& forest = *mount.forest;
  CHECK(mount.ino({"one", "c"}) != mount.ino({"two", "c"}));
  CHECK(InodeSpace::local(mount.ino({"one", "c"})) == InodeSpace::local(mount.ino({"two", "c"})));
  const Ino c = mount.ino({"two", "c"});
  const Forest::Pin two = forest.model_of(c);
  const auto file = two->open(c, O_WRONLY, 1);
  REQUIRE(file);
  REQUIRE(two->write(**file, bytes_of("12345"), 0, 1));
  const auto closed = two->flush(**file, 1, 1);
  REQUIRE(closed);
  CHECK(closed->first == c);
  static_cast<void>(two->release(*file));
  CHECK(mount.content(c) == "12345");
  CHECK(mount.content(mount.ino({"one", "c"})) == "CCCCC");
  CHECK(mount.content(mount.ino({"two", ".safetensors", "slice", "c[4]"})) == "5");

  const Ino ones = mount.ino({"one", ".safetensors", "transactions"});
  const Ino begun = forest.model_of(ones)->make_directory(ones, "t")->st_ino;
  CHECK(forest.attributes(begun)->st_ino == begun);
  CHECK(errno_of(forest.lookup(mount.ino({"two", ".safetensors", "transactions"}), "t")) == ENOENT);
  CHECK(errno_of(forest.rename(ones, "t", mount.ino({"two", ".safetensors", "committed"}), "t")) == EXDEV);
  const auto npy = mount.ino({"two", ".safetensors", "npy", "c.npy"});
  static_cast<void>(mount.content(npy));
  const auto views = two->stale_views(Stale::one(c, Stale::What::Content));
  REQUIRE_FALSE(views.empty());
  CHECK(views.front().first == npy);
}

TEST_CASE("a name that no file can have is told from one that is not there", "[fs][forest]") {
  const TwoModels mount;
  const std::string longest(255, 'x');
  for (const Ino directory :
       {kRootIno, mount.ino({"one"}), mount.ino({"one", ".safetensors", "transactions"})}) {
    CHECK(errno_of(mount.forest->lookup(directory, longest)) == ENOENT);
    CHECK(errno_of(mount.forest->lookup(directory, longest + "x")) == ENAMETOOLONG);
  }
}

TEST_CASE("the root of a directory of models lists them and does nothing else", "[fs][forest]") {
  const TwoModels mount;
  Forest& forest = *mount.forest;
  std::vector<std::string> names;
  REQUIRE(forest.read_directory(kRootIno, 0, [&](std::string_view name, Ino ino, std::uint64_t) {
    names.emplace_back(name);
    CHECK(forest.file_type(ino) == S_IFDIR);
    return true;
  }));
  CHECK(names == std::vector<std::string>{".", "..", "one", "two"});
  CHECK(forest.attributes(kRootIno)->st_nlink == 4);
  CHECK(errno_of(forest.lookup(kRootIno, "bad")) == EIO);
  CHECK(forest.lookup(kRootIno, ".safetensors")->st_ino == kHiddenIno);  // has the log alone
  CHECK_FALSE(forest.model_of(kRootIno));
  CHECK(errno_of(forest.rename(kRootIno, "one", kRootIno, "three")) == EPERM);
  CHECK(forest.statistics().f_files > 10);
  CHECK_FALSE(forest.is_read_only());
  // `..` of a model is the root, of what lies in it is the model.
  REQUIRE(forest.read_directory(mount.ino({"two"}), 1, [&](std::string_view name, Ino ino, std::uint64_t) {
    CHECK(name == "..");
    CHECK(ino == kRootIno);
    return false;
  }));
  CHECK(forest.watched_files().size() == 7);
  forest.tidy();
  forest.end();
}

namespace {

/// A lone model that is opened anew as often as it is replaced.
struct Replaced {
  explicit Replaced(bool is_read_only = false) {
    base_options.is_read_only = is_read_only;
    forest = std::make_unique<Forest>(
        Forest::Member{.name = "", .path = path(), .filesystem = filesystem({}).value(), .open = opener()});
    forest->connect_to({.note_commit = [this] { ++notes; }});
  }
  [[nodiscard]] std::filesystem::path path() const { return directory.path() / "m.safetensors"; }
  Result<std::unique_ptr<Filesystem>> filesystem(const Forest::Heritage& heritage) const {
    auto archive = Archive::open(path(), Access::ReadWrite, storage);
    if (!archive) return pass_on(std::move(archive));
    FilesystemOptions options = base_options;
    options.activity = heritage.activity;
    options.least_generation = heritage.least_generation;
    return std::make_unique<Filesystem>(std::move(*archive), options);
  }
  Forest::Open opener() {
    return [this](const Forest::Heritage& heritage) { return filesystem(heritage); };
  }
  /// As a program that saves with care.
  void replace(std::string_view bytes) const {
    std::filesystem::rename(directory.write("new", bytes), path());
  }
  Forest::Change look() const {
    Forest::Change all;
    for (const auto& file : forest->watched_files()) {
      Forest::Change change = forest->check_for_change(file);
      if (change.is_reopened || !change.entries.empty()) return change;
    }
    return all;
  }
  [[nodiscard]] Result<std::string> content(Ino ino) const {
    const auto bytes = forest->model_of(ino)->read(ino, 0, 1 << 20);
    if (!bytes) return tl::unexpected(bytes.error());
    return text_of(bytes->copy().value());
  }
  [[nodiscard]] std::uint64_t generation(Ino ino) const {
    return std::stoull(forest->model_of(ino)->extended_attribute(ino, "user.safetensors.generation").value());
  }

  const TemporaryDirectory directory;
  const std::string written = directory.write("m.safetensors", archive_of(DrivenModel::kOne));
  FilesystemOptions base_options;
  int notes = 0;
  mutable FaultyStorage storage;
  std::unique_ptr<Forest> forest;
};

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("a replaced model is shown; who has the old one open keeps it, to its end", "[fs][forest]") {
  Replaced mount;
  Forest& forest = *mount.forest;
  const Ino old = forest.lookup(kRootIno, "b")->st_ino;
  const auto generation = mount.generation(old);
  CHECK_FALSE(mount.look().is_reopened);
  mount.replace(archive_of(DrivenModel::kTwo));
  std::filesystem::last_write_time(mount.path(), std::filesystem::file_time_type());
  const auto change = mount.look();
  CHECK(change.is_reopened);
  CHECK(change.entries == Names{"a.x", "a.y", "b", "c", "none"});
  CHECK(mount.notes == 0);
  CHECK_FALSE(mount.look().is_reopened);

  CHECK(errno_of(forest.lookup(kRootIno, "b")) == ENOENT);
  const Ino c = forest.lookup(kRootIno, "c")->st_ino;
  CHECK(mount.content(c) == "CCCCC");
  CHECK(mount.generation(c) > generation);  // though the new file is older
  CHECK(mount.content(old).value().starts_with('B'));
  forest.tidy();
  CHECK(mount.content(old).value().starts_with('B'));

  forest.forget(old, 1);
  CHECK(mount.notes == 1);
  CHECK(errno_of(forest.attributes(old)) == ENOENT);
  forest.tidy();
  CHECK(mount.content(c) == "CCCCC");
}

TEST_CASE("a transaction of a replaced model is no other model's: ESTALE, and `mv` does not copy",
          "[fs][forest]") {
  const Replaced mount;
  Forest& forest = *mount.forest;
  const auto directory = [&](std::string_view name) {
    return forest.lookup(forest.lookup(kRootIno, ".safetensors")->st_ino, name)->st_ino;
  };
  const Ino transactions = directory("transactions");
  const Ino committed = directory("committed");
  REQUIRE(forest.model_of(transactions)->make_directory(transactions, "t"));
  mount.replace(archive_of(DrivenModel::kTwo));
  REQUIRE(mount.look().is_reopened);
  CHECK(errno_of(forest.rename(transactions, "t", directory("committed"), "t")) == ESTALE);
  CHECK(errno_of(forest.rename(directory("transactions"), "t", committed, "t")) == ESTALE);
}

TEST_CASE("a model that is replaced by something else is refused until it is mended", "[fs][forest]") {
  const Replaced mount;
  Forest& forest = *mount.forest;
  const Ino old = forest.lookup(kRootIno, "b")->st_ino;
  mount.replace("no archive");
  const CapturedStderr captured;
  const auto change = mount.look();
  CHECK_FALSE(change.is_reopened);
  CHECK_FALSE(change.entries.empty());
  CHECK(std::ranges::count(forest.leftovers(), "archive.safetensors", &std::pair<Ino, std::string>::second) ==
        1);
  CHECK_FALSE(captured.contains("its tensors give EIO"));  // not before the kernel has forgotten it
  change.tell();
  CHECK(captured.contains("its tensors give EIO"));
  CHECK(mount.look().entries.empty());  // said once
  CHECK(errno_of(forest.lookup(kRootIno, "b")) == EIO);
  CHECK(mount.content(old).value().starts_with('B'));
  const Ino views = forest.lookup(kRootIno, ".safetensors")->st_ino;
  CHECK(errno_of(forest.lookup(views, "archive.safetensors")) == EIO);
  CHECK(errno_of(forest.lookup(forest.lookup(views, "slice")->st_ino, "b[0]")) == EIO);
  const Ino stats = forest.lookup(views, "stats.json")->st_ino;
  CHECK(mount.content(stats).value().find("m.safetensors") != std::string::npos);

  mount.replace(archive_of(DrivenModel::kTwo));
  CHECK(mount.look().is_reopened);
  CHECK(forest.lookup(kRootIno, "c"));
}

TEST_CASE("a model that the store fails to read when it is opened anew is looked at again", "[fs][forest]") {
  // Opening may write: it finishes what dead writers have left.
  const int failure = GENERATE(EIO, ENOSPC, EDQUOT);
  CAPTURE(failure);
  const Replaced mount;
  mount.replace(archive_of(DrivenModel::kTwo));
  mount.storage.plan().fail_call(FileCall::Read, 1, failure);
  const auto change = mount.look();
  CHECK_FALSE(change.is_reopened);
  CHECK(change.is_due_again);
  CHECK(errno_of(mount.forest->lookup(kRootIno, "b")) == EIO);
  CHECK(mount.look().is_reopened);
  CHECK(mount.forest->lookup(kRootIno, "c"));
}

TEST_CASE("a model that the store fails to look at is looked at again", "[fs][forest]") {
  const Replaced mount;
  const auto is_due_again = [&] {
    return std::ranges::any_of(mount.forest->watched_files(), [&](const auto& file) {
      return mount.forest->check_for_change(file).is_due_again;
    });
  };
  CHECK_FALSE(is_due_again());
  static_cast<void>(mount.directory.write("m.safetensors", archive_of(DrivenModel::kOne)));
  mount.storage.plan().fail_call(FileCall::Read, 1, EIO);
  CHECK(is_due_again());
  CHECK_FALSE(is_due_again());
  CHECK(mount.forest->lookup(kRootIno, "b"));
}

TEST_CASE(
    "who has a model open in a read-only mount whose header was changed in place learns of later changes",
    "[fs][forest]") {
  const Replaced mount(true);
  Forest& forest = *mount.forest;
  const Ino old = forest.lookup(kRootIno, "b")->st_ino;
  int at = 0;
  const auto write = [&](std::uint64_t offset, std::string_view bytes) {
    std::fstream(mount.path(), std::ios::in | std::ios::out | std::ios::binary)
        .seekp(static_cast<std::streamoff>(offset))
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    std::filesystem::last_write_time(mount.path(),
                                     std::filesystem::file_time_type() + std::chrono::seconds(++at));
  };
  const std::string bytes = archive_of(DrivenModel::kOne);
  const std::size_t watched = forest.watched_files().size();
  write(bytes.find("\"b\"") + 1, "B");
  REQUIRE(mount.look().is_reopened);
  const Ino present = forest.lookup(kRootIno, "B")->st_ino;
  CHECK(mount.content(old).value() == mount.content(present).value());
  const auto told = [&] {
    std::vector<Ino> found;
    for (const auto& file : forest.watched_files()) {
      for (const Stale& stale : forest.check_for_change(file).stale) {
        if (stale.first <= old && old <= stale.last) found.push_back(old);
        if (stale.first <= present && present <= stale.last) found.push_back(present);
      }
    }
    return found;
  };
  told();
  CHECK(told().empty());
  CHECK(forest.watched_files().size() == watched + 1);
  write(bytes.find("BBBB"), "xyz");
  CHECK(told() == std::vector<Ino>{present, old});
  CHECK(mount.content(old).value().starts_with("xyzB"));
  CHECK(mount.content(old).value() == mount.content(present).value());
  // Another file at the path is nothing to the old one, and its end ends the watch.
  mount.replace(bytes);
  REQUIRE(mount.look().is_reopened);
  CHECK(forest.watched_files().size() == watched);
  CHECK(mount.content(old).value().starts_with("xyzB"));
}

TEST_CASE("a deleted model is read to its end", "[fs][forest]") {
  const Replaced mount;
  std::filesystem::remove(mount.path());
  CHECK(mount.look().entries.empty());
  CHECK(mount.forest->lookup(kRootIno, "b"));
}

TEST_CASE("FLUSH is called off only where nothing can ever be written", "[fs][forest]") {
  // ENOSYS counts for the whole connection: one read-only archive must not drop another one's writes.
  struct Row {
    bool first_is_read_only;
    bool second_is_read_only;
    int answer;
  };
  for (const Row& row :
       {Row{false, false, 0}, Row{true, false, 0}, Row{false, true, 0}, Row{true, true, ENOSYS}}) {
    FilesystemOptions first;
    FilesystemOptions second;
    first.is_read_only = row.first_is_read_only;
    second.is_read_only = row.second_is_read_only;
    DrivenModel one(first);
    DrivenModel two(second);
    std::vector<Forest::Member> members;
    members.push_back({.name = "one", .filesystem = one.take()});
    members.push_back({.name = "two", .filesystem = two.take()});
    const Forest forest(std::move(members));
    CHECK(forest.is_read_only(forest.model_of(forest.lookup(kRootIno, "one")->st_ino)) ==
          row.first_is_read_only);
    CHECK(forest.errno_of_readers_flush() == row.answer);
    CHECK(forest.is_read_only() == (row.answer == ENOSYS));
  }
}
