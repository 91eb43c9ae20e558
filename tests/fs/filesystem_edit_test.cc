// Tensors are deleted, renamed and retyped through the file system, and all open files stay usable.
#include <linux/fs.h>
#include <sys/xattr.h>

#include <algorithm>

#include "tests/fs/descriptor.h"
#include "tests/fs/edited.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE("a deleted tensor goes from the tree, and readers keep its bytes", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  const Ino second = mount.ino("second");
  mount->note_lookup(second);
  REQUIRE(mount->remove_file(kRootIno, "second"));
  CHECK(errno_of(mount->lookup(kRootIno, "second")) == ENOENT);
  CHECK(list(mount) == Names{"first", "third"});
  CHECK(stored_tensors(mount) == std::map<std::string, std::string>{{"first", kOld}, {"third", kThird}});
  CHECK(read_ino(mount, second) == kSecond);
  CHECK(mount->attributes(second)->st_nlink == 0);
  CHECK(mount->attributes(second)->st_size == 16);
  CHECK(errno_of(mount->extended_attribute(second, "user.safetensors.name")) == 0);

  // The space becomes free when the kernel has forgotten the file.
  mount->tidy();
  CHECK(mount->model().removed().size() == 1);
  CHECK(read_ino(mount, second) == kSecond);
  mount->forget(second, 1);
  mount->tidy();
  CHECK(mount->model().removed().empty());
  CHECK(errno_of(mount->attributes(second)) == ENOENT);
  CHECK(errno_of(mount->remove_file(kRootIno, "second")) == ENOENT);
  CHECK(mount.read("third") == kThird);
}

TEST_CASE("a renamed tensor keeps its inode, and its views follow", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  const Ino first = mount.ino("first");
  const Ino views = mount.ino(".safetensors");
  const Ino npy = mount.ino("npy", views);
  const Ino slices = mount.ino("slice", views);
  static_cast<void>(mount.ino("first[0:4]", slices));
  const auto renamed = mount->rename(kRootIno, "first", kRootIno, "a/b");
  CHECK(errno_of(renamed) == EILSEQ);
  REQUIRE(mount->rename(kRootIno, "first", kRootIno, "a%2Fb"));
  CHECK(mount.ino("a%2Fb") == first);
  CHECK(mount->extended_attribute(first, "user.safetensors.name").value() == "a/b");
  CHECK(errno_of(mount->lookup(kRootIno, "first")) == ENOENT);
  CHECK(errno_of(mount->lookup(npy, "first.npy")) == ENOENT);
  CHECK(errno_of(mount->lookup(slices, "first[0:4]")) == ENOENT);
  CHECK(errno_of(mount->lookup(npy, "a%2Fb.npy")) == 0);
  CHECK(stored_tensors(mount).at("a/b") == kOld);
}

TEST_CASE("a rename returns the entries and the views that the kernel must forget", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  make_room(mount);
  const Ino views = mount.ino(".safetensors");
  const Ino npy = mount.ino("npy", views);
  const Ino view = mount.ino("first.npy", npy);
  REQUIRE(read_ino(mount, view).ends_with(kOld));
  const auto renamed = mount->rename(kRootIno, "first", kRootIno, "other");
  REQUIRE(renamed);
  CHECK(renamed->entries == std::vector<std::pair<Ino, std::string>>{{npy, "first.npy"},
                                                                     {kRootIno, "first"},
                                                                     {views, "header.json"},
                                                                     {views, "metadata.json"},
                                                                     {views, "archive.safetensors"}});
  CHECK(std::ranges::any_of(renamed->stale, [&](const Stale& stale) {
    return stale.first == view && stale.last == view && stale.what == Stale::What::Content;
  }));
}

TEST_CASE("a rename replaces a tensor, unless the flags forbid it", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  CHECK(errno_of(mount->rename(kRootIno, "first", kRootIno, "second", RENAME_NOREPLACE)) == EEXIST);
  CHECK(list(mount).size() == 3);
  const Ino second = mount.ino("second");
  mount->note_lookup(second);
  REQUIRE(mount->rename(kRootIno, "first", kRootIno, "second"));
  CHECK(list(mount).size() == 2);
  CHECK(mount.read("second") == kOld);
  CHECK(read_ino(mount, second) == kSecond);
  REQUIRE(mount->rename(kRootIno, "third", kRootIno, "second", RENAME_EXCHANGE));
  CHECK(stored_tensors(mount) == std::map<std::string, std::string>{{"third", kOld}, {"second", kThird}});
  CHECK(errno_of(mount->rename(kRootIno, "gone", kRootIno, "second")) == ENOENT);
  CHECK(errno_of(mount->rename(kRootIno, "third", kRootIno, "gone", RENAME_EXCHANGE)) == ENOENT);
  CHECK(errno_of(mount->rename(kRootIno, "third", kRootIno, "third")) == 0);
}

TEST_CASE("no tensor is renamed over one that is being written", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  make_room(mount);
  Descriptor writer(mount, "second", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  CHECK(errno_of(mount->rename(kRootIno, "first", kRootIno, "second")) == EBUSY);
  // The tensor can be deleted, as on any file system. Its pending bytes are dropped.
  REQUIRE(mount->remove_file(kRootIno, "second"));
  CHECK(errno_of(writer.close()) == ESTALE);
  CHECK(stored_tensors(mount).size() == 2);
}

TEST_CASE("what was staged before an edit commits after it", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  make_room(mount);
  Descriptor writer(mount, "second", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  REQUIRE(mount->remove_file(kRootIno, "first"));
  REQUIRE(mount->rename(kRootIno, "second", kRootIno, "other"));
  CHECK(errno_of(writer.close()) == 0);
  CHECK(stored_tensors(mount).at("other") == kNew);
  CHECK(mount.read("other") == kNew);
}

TEST_CASE("a tensor that is being written is not moved out of the header's way", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  Descriptor writer(mount, "second", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  CHECK(errno_of(mount->remove_file(kRootIno, "first")) == EBUSY);
  CHECK(errno_of(writer.close()) == 0);
  CHECK(errno_of(mount->remove_file(kRootIno, "first")) == 0);
  CHECK(stored_tensors(mount) == std::map<std::string, std::string>{{"second", kNew}, {"third", kThird}});
}

TEST_CASE("dtype and shape give the bytes another meaning", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  const Ino first = mount.ino("first");
  const auto set = [&](std::string_view key, const std::string& value, int flags = 0) {
    return errno_of(
        mount->set_extended_attribute(first, "user.safetensors." + std::string(key), value, flags));
  };
  const auto get = [&](std::string_view key) {
    return mount->extended_attribute(first, "user.safetensors." + std::string(key)).value();
  };
  CHECK(set("shape", "[4, 4]") == 0);
  CHECK(get("shape") == "[4,4]");
  CHECK(set("dtype", "F32") == 0);
  CHECK(get("dtype") == "F32");
  CHECK(get("shape") == "[4,1]");
  CHECK(set("dtype", "F64") == EINVAL);
  CHECK(get("shape") == "[4,1]");
  CHECK(set("dtype", "F33") == EINVAL);
  CHECK(set("shape", "[5]") == EINVAL);
  CHECK(set("shape", "4x1") == EINVAL);
  CHECK(set("shape", "[18446744073709551615,2]") == EINVAL);
  CHECK(set("shape", "[2,2]", XATTR_CREATE) == EEXIST);
  CHECK(set("checksum", "x") == EPERM);
  CHECK(set("unknown", "0") == EPERM);
  CHECK(get("shape") == "[4,1]");
  CHECK(mount.read("first") == kOld);
  CHECK(Archive::open(mount.path(), Access::ReadOnly).value()->tensors()[0].dtype == Dtype::F32);
}

TEST_CASE("the dtype of a tensor without elements changes, and no dimension overflows", "[fs][edit]") {
  const DrivenFilesystem mount({{"empty", ""}, {"other", kOld}});
  const auto set = [&](std::string_view key, const std::string& value) {
    return errno_of(
        mount->set_extended_attribute(mount.ino("empty"), "user.safetensors." + std::string(key), value));
  };
  CHECK(set("shape", "[0,4611686018427387904]") == 0);
  CHECK(set("dtype", "F32") == EINVAL);
  CHECK(set("shape", "[0,8]") == 0);
  CHECK(set("dtype", "F32") == 0);
  CHECK(mount->extended_attribute(mount.ino("empty"), "user.safetensors.shape").value() == "[0,2]");
}

TEST_CASE("metadata are set and removed on the root", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  const auto set = [&](const std::string& key, const std::optional<std::string>& value, int flags = 0) {
    return errno_of(
        mount->set_extended_attribute(kRootIno, "user.safetensors.metadata." + key, value, flags));
  };
  CHECK(set("k", "v") == 0);
  CHECK(mount->extended_attribute(kRootIno, "user.safetensors.metadata.k").value() == "v");
  CHECK(set("k", "w", XATTR_CREATE) == EEXIST);
  CHECK(set("x", "w", XATTR_REPLACE) == ENODATA);
  CHECK(set("x", std::nullopt) == ENODATA);
  CHECK(set("k", "\xff") == EINVAL);
  CHECK(set("k", "") == 0);
  CHECK(Archive::open(mount.path(), Access::ReadOnly).value()->metadata() == Metadata{{"k", ""}});
  CHECK(set("k", std::nullopt) == 0);
  CHECK(Archive::open(mount.path(), Access::ReadOnly).value()->metadata().empty());
  CHECK(errno_of(mount->set_extended_attribute(kRootIno, "user.other", "x")) == EPERM);
}

TEST_CASE("whole views of before an edit stay as they were", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  const Ino views = mount.ino(".safetensors");
  const Ino before = mount.ino("archive.safetensors", views);
  const Ino header = mount.ino("header.json", views);
  const std::string whole = read_ino(mount, before);
  const std::string json = read_ino(mount, header);
  REQUIRE(mount->remove_file(kRootIno, "first"));
  REQUIRE(mount->rename(kRootIno, "third", kRootIno, "a name that is much longer than the one of before"));
  mount->tidy();
  CHECK(read_ino(mount, before) == whole);
  CHECK(read_ino(mount, header) == json);
  const Ino after = mount.ino("archive.safetensors", views);
  CHECK(after != before);
  CHECK(read_ino(mount, after) != whole);
  CHECK(mount->model().removed().size() == 1);
  mount->forget(before, 1);
  mount->forget(header, 1);
  mount->tidy();
  CHECK(errno_of(mount->attributes(before)) == ENOENT);
  CHECK(mount->model().removed().empty());
}

TEST_CASE("a request to make a file that is there holds no version of the model", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  const Ino views = mount.ino(".safetensors");
  const Ino before = mount.ino("archive.safetensors", views);
  CHECK(errno_of(mount->create(views, "archive.safetensors", O_WRONLY | O_EXCL, ::getpid())) == EEXIST);
  REQUIRE(mount->remove_file(kRootIno, "first"));
  CHECK(mount->attributes(before));
  mount->forget(before, 1);
  CHECK(errno_of(mount->attributes(before)) == ENOENT);
}

TEST_CASE("with edit=off bytes can be written and nothing else", "[fs][edit]") {
  MountedModelOptions options;
  options.allows_edits = false;
  const DrivenFilesystem mount(kThree, options);
  CHECK(errno_of(mount->remove_file(kRootIno, "first")) == EPERM);
  CHECK(errno_of(mount->rename(kRootIno, "first", kRootIno, "x")) == EPERM);
  CHECK(errno_of(mount->set_extended_attribute(kRootIno, "user.safetensors.metadata.k", "v")) == EPERM);
  CHECK(errno_of(mount->set_extended_attribute(mount.ino("first"), "user.safetensors.dtype", "I8")) == EPERM);
  CHECK((mount->attributes(kRootIno)->st_mode & 0222) == 0);
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write(kNew, 0));
  CHECK(errno_of(writer.close()) == 0);
}

TEST_CASE("names, bytes and inodes hold through many edits", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  const Ino third = mount.ino("third");
  mount->note_lookup(third);
  for (int round = 0; round < 30; ++round) {
    const std::string name = "n" + std::string(static_cast<std::size_t>(round * 20), 'x').substr(0, 200);
    const std::string now = list(mount).back();
    REQUIRE((now == name || mount->rename(kRootIno, now, kRootIno, name)));
    CHECK(mount.ino(name) == third);
    CHECK(mount.read(name) == kThird);
    REQUIRE(mount->set_extended_attribute(kRootIno, "user.safetensors.metadata.long",
                                          std::string(static_cast<std::size_t>(round * 500), 'm')));
    mount->tidy();
  }
  CHECK(mount.read("first") == kOld);
}

TEST_CASE("a tensor that is staged in a transaction and deleted fails the commit, and can be taken out",
          "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  make_room(mount);
  const Ino views = mount.ino(".safetensors");
  const Ino transactions = mount.ino("transactions", views);
  const Ino directory = mount->make_directory(transactions, "T").value().st_ino;
  const auto stage = [&](std::string_view name) {
    const auto file = mount->open(mount.ino(name, directory), O_WRONLY, ::getpid()).value();
    REQUIRE(mount->write(*file, bytes_of(kNew), 0, Caller(1, ::getpid())));
    CHECK(errno_of(mount->flush(*file, 1, ::getpid())) == 0);
    mount->release(file);
  };
  stage("first");
  stage("second");
  REQUIRE(mount->remove_file(kRootIno, "second"));
  mount->tidy();
  CHECK(list(mount, directory) == Names{"first", "second"});
  const Ino committed = mount.ino("committed", views);
  CHECK(errno_of(mount->rename(transactions, "T", committed, "T")) == ESTALE);
  CHECK(stored_tensors(mount).at("first") == kOld);
  REQUIRE(mount->remove_file(directory, "second"));
  CHECK(list(mount, directory) == Names{"first"});
  REQUIRE(mount->rename(transactions, "T", committed, "T"));
  CHECK(stored_tensors(mount).at("first") == kNew);
}

TEST_CASE("the end of the mount frees what a deleted tensor takes, although it was open", "[fs][edit]") {
  const std::string large(1 << 20, 'L');
  const DrivenFilesystem mount({{"large", large}, {"last", kOld}});
  const auto blocks = [&] {
    struct stat status {};
    REQUIRE(::stat(mount.path().c_str(), &status) == 0);
    return status.st_blocks;
  };
  mount->note_lookup(mount.ino("large"));
  REQUIRE(mount->remove_file(kRootIno, "large"));
  mount->tidy();
  const auto before = blocks();
  CHECK(mount->model().removed().size() == 1);
  mount->end();
  CHECK(blocks() + 2000 < before);
  CHECK(stored_tensors(mount) == std::map<std::string, std::string>{{"last", kOld}});
}

TEST_CASE("the first write to a tensor that was deleted while it was open is refused", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  make_room(mount);
  const Ino third = mount.ino("third");
  mount->note_lookup(third);
  for (const int flags : {O_WRONLY, O_RDWR}) {
    OpenFile* const writer =
        mount->open(mount.ino(flags == O_WRONLY ? "third" : "second"), flags, ::getpid()).value();
    REQUIRE(mount->remove_file(kRootIno, flags == O_WRONLY ? "third" : "second"));
    CHECK(errno_of(mount->write(*writer, bytes_of(kNew), 0, Caller(1, ::getpid()))) == ESTALE);
    CHECK(errno_of(mount->flush(*writer, 1, ::getpid())) == ESTALE);
    mount->release(writer);
  }
  CHECK(read_ino(mount, third) == kThird);
  CHECK(stored_tensors(mount) == std::map<std::string, std::string>{{"first", kOld}});
}
