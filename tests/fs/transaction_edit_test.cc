// Edits of the structure in a transaction's directory: which edits can be staged, and how they show.
// transaction_edit_commit_test.cc tests their commit.
#include <linux/fs.h>
#include <sys/xattr.h>

#include "tests/fs/driven_model.h"
#include "tests/fs/edited_transaction.h"
#include "tests/support/catch.h"
#include "tests/support/open_descriptors.h"

using namespace stfs;
using namespace stfs::test;

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
    WrittenFile file(t.mount, "typed", directory);
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
    REQUIRE(mount->set_extended_attribute(made.status.st_ino, "user.safetensors.dtype", "U8"));
    REQUIRE(mount->set_extended_attribute(made.status.st_ino, "user.safetensors.shape", "[7]"));
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
  CHECK(make_plain("temporary", kNew) == 0);
  CHECK(make_plain("short", "short") == 0);
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
  CHECK(set("second", "unknown", "x") == EPERM);
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

TEST_CASE_METHOD(EditedTransaction, "a transaction of many new tensors needs one descriptor",
                 "[fs][transaction_edit]") {
  constexpr int kMany = 300;
  REQUIRE(make("new 0", "0") == 0);
  const std::size_t before = open_descriptors();
  for (int at = 1; at < kMany; ++at) REQUIRE(make("new " + std::to_string(at), std::to_string(at)) == 0);
  CHECK(open_descriptors() == before);
  CHECK(t.commit() == 0);
  const Stored after = stored();
  CHECK(after.size() == 3 + kMany);
  CHECK(after.at("new 299") == "299");
}

TEST_CASE_METHOD(EditedTransaction, "a new tensor has at most as many bytes as a tensor can have",
                 "[fs][transaction_edit]") {
  WrittenFile file(t.mount, "huge", directory);
  // 2^61 bytes have 2^64 bits.
  REQUIRE(t.mount->resize_by_name(file.ino(), std::uint64_t{1} << 61U, ::getpid()));
  CHECK(file.save() != 0);
  CHECK(t.commit() != 0);
  CHECK(stored() == kStoredThree);
}
