// Edits of the structure in a transaction's directory: staged there, unseen outside, committed as one or not
// at all.
#include <linux/fs.h>
#include <sys/xattr.h>

#include <atomic>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "tests/fs/driven_model.h"
#include "tests/fs/edited.h"
#include "tests/fs/transacted.h"
#include "tests/support/catch.h"
#include "tests/support/child_process.h"
#include "tests/support/faulty_storage.h"

using namespace stfs;
using namespace stfs::test;

namespace {

using Stored = std::map<std::string, std::string>;

const Stored kStoredThree = {{"first", kOld}, {"second", kSecond}, {"third", kThird}};

struct EditedTransaction {
  explicit EditedTransaction(const FilesystemOptions& options = {}, Storage& storage = system_storage())
      : t(options, storage, kThree) {}

  Transacted t;
  Ino directory = t.begin();

  [[nodiscard]] int remove(std::string_view name) const {
    return errno_of(t.mount->remove_file(directory, name));
  }
  [[nodiscard]] int move(std::string_view name, std::string_view to, unsigned flags = 0) const {
    return errno_of(t.mount->rename(directory, name, directory, to, flags));
  }
  [[nodiscard]] int make(std::string_view name, std::string_view bytes) const {
    MadeFile file(t.mount, name, directory);
    const int written = bytes.empty() ? 0 : file.write(bytes);
    return written != 0 ? written : file.close();
  }
  [[nodiscard]] int set(std::string_view name, std::string_view key, const std::string& value) const {
    return errno_of(t.mount->set_extended_attribute(t.mount.ino(name, directory),
                                                    "user.safetensors." + std::string(key), value));
  }
  [[nodiscard]] std::string attribute(std::string_view name, std::string_view key) const {
    return t.mount->extended_attribute(t.mount.ino(name, directory), "user.safetensors." + std::string(key))
        .value_or("none");
  }
  [[nodiscard]] int set_metadata(std::string_view key, const std::optional<std::string>& value,
                                 int flags = 0) const {
    return errno_of(t.mount->set_extended_attribute(
        directory, "user.safetensors.metadata." + std::string(key), value, flags));
  }
  [[nodiscard]] std::string metadata(Ino of, std::string_view key) const {
    return t.mount->extended_attribute(of, "user.safetensors.metadata." + std::string(key)).value_or("none");
  }
  [[nodiscard]] bool has(std::string_view name) const { return t.mount->lookup(directory, name).has_value(); }
  [[nodiscard]] Names listed() const {
    Names names = t.list(directory);
    std::ranges::sort(names);
    return names;
  }
  [[nodiscard]] Stored stored() const { return stored_tensors(t.mount); }
  [[nodiscard]] std::string bytes() const { return content_of(t.mount.path()); }
  void roll_back() const {
    for (const std::string& name : t.list(directory)) CHECK(remove(name) == 0);
    CHECK(errno_of(t.mount->remove_directory(kTransactions, "T")) == 0);
  }
};

}  // namespace

TEST_CASE_METHOD(EditedTransaction, "a removed tensor is gone inside at once, outside with the commit",
                 "[fs][transaction_edit]") {
  const std::string before = bytes();
  CHECK(remove("second") == 0);
  CHECK_FALSE(has("second"));
  CHECK(remove("second") == ENOENT);
  CHECK(listed().empty());
  CHECK(t.mount->extended_attribute(directory, "user.safetensors.deleted").value() == R"(["second"])");
  CHECK(t.mount.read("second") == kSecond);
  CHECK(bytes() == before);
  CHECK(t.commit() == 0);
  CHECK(stored() == Stored{{"first", kOld}, {"third", kThird}});
  CHECK(errno_of(t.mount->lookup(kRootIno, "second")) == ENOENT);
  CHECK(t.list(kCommitted) == Names{"T"});
}

TEST_CASE_METHOD(EditedTransaction, "rm of a staged patch takes back the patch; once more, it deletes",
                 "[fs][transaction_edit]") {
  CHECK(t.stage(directory, "first") == 0);
  CHECK(remove("first") == 0);
  CHECK(t.read(directory, "first") == kOld);
  CHECK(remove("first") == 0);
  CHECK_FALSE(has("first"));
  CHECK(t.commit() == 0);
  CHECK(stored() == Stored{{"second", kSecond}, {"third", kThird}});
}

TEST_CASE_METHOD(EditedTransaction, "names are exchanged, moved, replaced and moved on",
                 "[fs][transaction_edit]") {
  const Ino first = t.mount.ino("first");
  CHECK(move("first", "fourth") == 0);
  CHECK_FALSE(has("first"));
  CHECK(t.read(directory, "fourth") == kOld);
  CHECK(attribute("fourth", "name") == "fourth");
  CHECK(listed() == Names{"fourth"});
  CHECK(move("absent", "x") == ENOENT);
  SECTION("to a free name") {
    CHECK(t.commit() == 0);
    CHECK(stored() == Stored{{"fourth", kOld}, {"second", kSecond}, {"third", kThird}});
    CHECK(t.mount.ino("fourth") == first);
  }
  SECTION("and written") {
    CHECK(t.stage(directory, "fourth") == 0);
    CHECK(t.commit() == 0);
    CHECK(stored() == Stored{{"fourth", kNew}, {"second", kSecond}, {"third", kThird}});
    CHECK(t.mount.read("fourth") == kNew);
  }
  SECTION("over another one") {
    CHECK(move("fourth", "second", RENAME_NOREPLACE) == EEXIST);
    CHECK(move("fourth", "second") == 0);
    CHECK(t.read(directory, "second") == kOld);
    CHECK(t.commit() == 0);
    CHECK(stored() == Stored{{"second", kOld}, {"third", kThird}});
  }
  SECTION("over another one and on: what it has replaced is gone") {
    CHECK(move("fourth", "second") == 0);
    CHECK(move("second", "fifth") == 0);
    CHECK_FALSE(has("second"));
    CHECK(t.commit() == 0);
    CHECK(stored() == Stored{{"fifth", kOld}, {"third", kThird}});
  }
  SECTION("back") {
    CHECK(move("fourth", "first") == 0);
    CHECK(listed().empty());
    CHECK(t.commit() == 0);
    CHECK(stored() == kStoredThree);
  }
  SECTION("and exchanged") {
    CHECK(move("fourth", "third", RENAME_EXCHANGE) == 0);
    CHECK(t.read(directory, "fourth") == kThird);
    CHECK(listed() == Names{"fourth", "third"});
    CHECK(move("fourth", "absent", RENAME_EXCHANGE) == ENOENT);
    CHECK(t.commit() == 0);
    CHECK(stored() == Stored{{"third", kOld}, {"second", kSecond}, {"fourth", kThird}});
  }
  SECTION("and taken back by rm") {
    CHECK(remove("fourth") == 0);
    CHECK(t.read(directory, "first") == kOld);
    CHECK(listed().empty());
  }
  SECTION("and taken back by rm, after another one has taken its name") {
    CHECK(make("first", "new") == 0);
    CHECK(remove("fourth") == 0);
    CHECK(t.read(directory, "first") == "new");
    CHECK(t.commit() == 0);
    CHECK(stored() == Stored{{"first", "new"}, {"second", kSecond}, {"third", kThird}});
  }
  SECTION("over another one, and taken back: both are as before") {
    CHECK(move("fourth", "second") == 0);
    CHECK(remove("second") == 0);
    CHECK(t.read(directory, "first") == kOld);
    CHECK(t.read(directory, "second") == kSecond);
    CHECK(listed().empty());
  }
}

TEST_CASE_METHOD(EditedTransaction, "names that no tensor can have are refused at once",
                 "[fs][transaction_edit]") {
  for (const std::string_view name : {"%zz", "a%", "__metadata__", "__safetensorsfs.free.1", "\xff"}) {
    CAPTURE(name);
    CHECK(move("first", name) == EILSEQ);
    CHECK(errno_of(t.mount->create(directory, name, O_WRONLY, ::getpid())) == EILSEQ);
  }
  CHECK(errno_of(t.mount->create(kTransactions, "x", O_WRONLY, ::getpid())) == EPERM);
  CHECK(errno_of(t.mount->create(directory, "first", O_WRONLY | O_EXCL, ::getpid())) == EEXIST);
  CHECK(listed().empty());
}

TEST_CASE_METHOD(EditedTransaction, "a new file is a tensor with the commit, of any size and form",
                 "[fs][transaction_edit]") {
  const std::string large(100'000, 'x');
  CHECK(make("large", large) == 0);
  CHECK(make("empty", "") == 0);
  {
    MadeFile file(t.mount, "typed", directory);
    CHECK(file.write("12345678") == 0);
    CHECK(set("typed", "dtype", "F32") == 0);
    CHECK(set("typed", "shape", "[2,1]") == 0);
    CHECK(file.close() == 0);
  }
  CHECK(listed() == Names{"empty", "large", "typed"});
  CHECK(t.read(directory, "large") == large);
  CHECK(t.mount->attributes(t.mount.ino("large", directory))->st_size == 100'000);
  CHECK(attribute("typed", "dtype") + attribute("typed", "shape") == "F32[2,1]");
  CHECK(attribute("typed", "view") == "transaction");
  CHECK(errno_of(t.mount->lookup(kRootIno, "large")) == ENOENT);
  CHECK(make("gone", "gone") == 0);
  CHECK(remove("gone") == 0);
  CHECK(move("typed", "renamed") == 0);
  CHECK(t.commit() == 0);
  CHECK(stored() == Stored{{"first", kOld},
                           {"second", kSecond},
                           {"third", kThird},
                           {"large", large},
                           {"empty", ""},
                           {"renamed", "12345678"}});
  CHECK(form_of(t.mount, "renamed") == "F32[2,1]");
  CHECK(form_of(t.mount, "large") == "U8[100000]");
  CHECK(t.mount.read("large") == large);
}

TEST_CASE_METHOD(EditedTransaction, "a new file in the place of a removed tensor is its replacement",
                 "[fs][transaction_edit]") {
  CHECK(remove("second") == 0);
  CHECK(make("second", "other size") == 0);
  CHECK(t.mount.read("second") == kSecond);
  SECTION("committed") {
    CHECK(t.commit() == 0);
    CHECK(stored() == Stored{{"first", kOld}, {"second", "other size"}, {"third", kThird}});
    CHECK(t.mount.read("second") == "other size");
  }
  SECTION("taken back: the tensor stays removed") {
    CHECK(remove("second") == 0);
    CHECK_FALSE(has("second"));
    CHECK(t.commit() == 0);
    CHECK(stored() == Stored{{"first", kOld}, {"third", kThird}});
  }
}

TEST_CASE("in a sharded model a replacement stays in its shard, and the index follows",
          "[fs][transaction_edit]") {
  const DrivenModel mount;
  const Ino directory = mount->make_directory(kTransactions, "T").value().st_ino;
  REQUIRE(mount->remove_file(directory, "b"));
  REQUIRE(mount->rename(directory, "a.x", directory, "c"));
  const auto make = [&](std::string_view name) {
    const auto made = mount->create(directory, name, O_WRONLY, 1).value();
    REQUIRE(mount->write(*made.file, bytes_of("new one"), 0, 1));
    REQUIRE(mount->flush(*made.file, 1, 1));
    static_cast<void>(mount->release(made.file));
  };
  make("b");
  make("new");
  REQUIRE(mount->set_extended_attribute(directory, "user.safetensors.metadata.n", "3"));
  REQUIRE(mount->rename(kTransactions, "T", kCommitted, "T"));
  CHECK(mount.attribute("b", "archive") == mount.directory() / "one.safetensors");
  CHECK(mount.attribute("c", "archive") == mount.directory() / "one.safetensors");
  CHECK(mount.attribute("new", "archive") == mount.directory() / "two.safetensors");
  CHECK(mount.read("b") == "new one");
  CHECK(mount.read("c") == "AAAA");
  CHECK(mount.read("a.y") == "YYY");
  CHECK(mount->extended_attribute(kRootIno, "user.safetensors.metadata.n").value() == "3");
  const auto again = Model::open(mount.directory().path(), {.is_strict = true}).value();
  Names names;
  for (std::uint32_t at = 0; at < again->tensors().size(); ++at)
    names.emplace_back(again->tensors()[at].name);
  std::ranges::sort(names);
  CHECK(names == Names{"a.y", "b", "c", "new", "none"});
}

TEST_CASE_METHOD(EditedTransaction, "an editor's new file keeps the form of what it replaces",
                 "[fs][transaction_edit]") {
  CHECK(set("second", "dtype", "F32") == 0);
  CHECK(make("temporary", kNew) == 0);
  CHECK(make("short", "short") == 0);
  CHECK(move("short", "second") == ENODATA);
  CHECK(move("temporary", "second") == 0);
  CHECK(attribute("second", "dtype") + attribute("second", "shape") == "F32[4]");
  CHECK(remove("short") == 0);
  CHECK(t.commit() == 0);
  CHECK(stored() == Stored{{"first", kOld}, {"second", kNew}, {"third", kThird}});
  CHECK(form_of(t.mount, "second") == "F32[4]");
}

TEST_CASE_METHOD(EditedTransaction, "another form is checked when it is set", "[fs][transaction_edit]") {
  CHECK(set("second", "dtype", "BF16") == 0);
  CHECK(set("second", "shape", "[2,4]") == 0);
  CHECK(attribute("second", "dtype") + attribute("second", "shape") == "BF16[2,4]");
  CHECK(form_of(t.mount, "second") == "U8[16]");
  CHECK(listed() == Names{"second"});
  CHECK(set("second", "shape", "[3]") == EINVAL);
  CHECK(set("second", "dtype", "F33") == EINVAL);
  CHECK(set("second", "name", "x") == EPERM);
  CHECK(set("second", "shape", "[99999999999,99999999999]") != 0);
  CHECK(errno_of(t.mount->set_extended_attribute(t.mount.ino("second", directory), "user.safetensors.dtype",
                                                 std::nullopt)) == EPERM);
  CHECK(t.stage(directory, "second") == 0);
  CHECK(t.commit() == 0);
  CHECK(form_of(t.mount, "second") == "BF16[2,4]");
  CHECK(stored().at("second") == kNew);
  CHECK(t.mount.ino("second") != 0);
}

TEST_CASE_METHOD(EditedTransaction, "the form of a new file changes after its close, too",
                 "[fs][transaction_edit]") {
  CHECK(make("new", "12345678") == 0);
  CHECK(set("new", "shape", "[2,4]") == 0);
  CHECK(set("new", "dtype", "I16") == 0);
  CHECK(attribute("new", "dtype") + attribute("new", "shape") == "I16[2,2]");
  CHECK(set("new", "shape", "[5]") == EINVAL);
  CHECK(t.commit() == 0);
  CHECK(form_of(t.mount, "new") == "I16[2,2]");
}

TEST_CASE_METHOD(EditedTransaction, "inside, a tensor gets another size if its form is set while it is open",
                 "[fs][transaction_edit]") {
  {
    Member file(t.mount, directory, "second");
    CHECK(set("second", "shape", "[3]") == 0);
    CHECK(file.write("abc", 0) == 0);
    CHECK(file.close() == 0);
  }
  CHECK(t.read(directory, "second") == "abc");
  CHECK(t.mount.read("second") == kSecond);
  {
    Member file(t.mount, directory, "first");
    CHECK(set("first", "shape", "[4]") == 0);
    CHECK(file.close() == 0);  // never written
  }
  CHECK(listed() == Names{"second"});
  CHECK(t.read(directory, "first") == kOld);
  SECTION("committed") {
    CHECK(t.commit() == 0);
    CHECK(stored() == Stored{{"first", kOld}, {"second", "abc"}, {"third", kThird}});
  }
  SECTION("with bytes missing it fails, and may be completed") {
    {
      Member file(t.mount, directory, "second", O_WRONLY | O_TRUNC);
      CHECK(file.write("a", 0) == 0);
      CHECK(file.close() == EINVAL);
    }
    CHECK(t.commit() == ENODATA);
    CHECK(stored() == kStoredThree);
    CHECK(t.stage(directory, "second", "xyz") == 0);
    CHECK(t.commit() == 0);
    CHECK(stored().at("second") == "xyz");
  }
  SECTION("taken back") {
    CHECK(remove("second") == 0);
    CHECK(t.read(directory, "second") == kSecond);
  }
}

TEST_CASE_METHOD(EditedTransaction, "metadata of the transaction are the model's with the commit",
                 "[fs][transaction_edit]") {
  CHECK(set_metadata("k", "v") == 0);
  CHECK(set_metadata("gone", std::nullopt) == ENODATA);
  CHECK(set_metadata("k", "w", XATTR_CREATE) == EEXIST);
  CHECK(set_metadata("absent", "w", XATTR_REPLACE) == ENODATA);
  CHECK(set_metadata("bad", "\xff") == EINVAL);
  CHECK(metadata(directory, "k") == "v");
  CHECK(metadata(kRootIno, "k") == "none");
  const auto names = t.mount->list_extended_attributes(directory).value();
  CHECK(std::ranges::find(names, "user.safetensors.metadata.k") != names.end());
  CHECK(listed().empty());
  SECTION("committed") {
    CHECK(t.commit() == 0);
    CHECK(metadata(kRootIno, "k") == "v");
    directory = t.begin();
    CHECK(metadata(directory, "k") == "v");
    CHECK(set_metadata("k", std::nullopt) == 0);
    CHECK(metadata(directory, "k") == "none");
    CHECK(t.commit() == 0);
    CHECK(metadata(kRootIno, "k") == "none");
  }
  SECTION("changed meanwhile: a conflict") {
    make_room(t.mount);
    REQUIRE(t.mount->set_extended_attribute(kRootIno, "user.safetensors.metadata.k", "other"));
    CHECK(t.commit() == ESTALE);
    CHECK(t.captured.contains("metadata \"k\" were changed by another program"));
    CHECK(metadata(kRootIno, "k") == "other");
  }
}

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
  // Who has them open sees the new bytes.
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
    MadeFile other(t.mount, "new");
    CHECK(other.write("other") == 0);
    CHECK(other.close() == 0);
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
    MadeFile file(t.mount, "new", directory);
    CHECK(file.write("new") == 0);
    CHECK(t.commit() == EBUSY);
    CHECK(remove("new") == EBUSY);
    CHECK(move("first", "new") == EBUSY);
    CHECK(move("new", "newer") == 0);
    CHECK(file.write("er", 3) == 0);
    CHECK(file.close() == 0);
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
  FilesystemOptions options;
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
  FilesystemOptions options;
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
  Filesystem& filesystem = *t.mount;
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
  others.emplace_back([&] {  // a transaction of its own
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
      MadeFile file(t.mount, fmt::format("made{}", step), directory);
      REQUIRE(file.write("made") == 0);
      REQUIRE(file.close() == 0);
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
