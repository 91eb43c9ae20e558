// Directories of layout=tree are made, moved and removed.
#include <linux/fs.h>

#include "fs/base/requester.h"
#include "tests/fs/descriptor.h"
#include "tests/fs/edited.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE("layout=tree: directories are made, moved with all tensors below, and removed", "[fs][edit]") {
  const DrivenFilesystem mount({{"l.0.a", kOld}, {"l.0.b", kSecond}, {"l.1.a", kThird}}, kTreeLayout);
  const Ino l = mount.ino("l");
  const Ino zero = mount.ino("0", l);
  const Ino a = mount.ino("a", zero);
  REQUIRE(mount->rename(l, "0", l, "9"));
  CHECK(mount.ino("9", l) == zero);
  CHECK(mount.ino("a", zero) == a);
  CHECK(errno_of(mount->lookup(l, "0")) == ENOENT);
  CHECK(stored_tensors(mount).at("l.9.b") == kSecond);

  const Ino made = mount->make_directory(kRootIno, "new").value().st_ino;
  CHECK(errno_of(mount->make_directory(kRootIno, "new")) == EEXIST);
  CHECK(errno_of(mount->make_directory(kRootIno, "a.b")) == EILSEQ);
  CHECK(list(mount, made).empty());
  CHECK(errno_of(mount->remove_directory(l, "9")) == ENOTEMPTY);
  CHECK(errno_of(mount->rename(kRootIno, "new", l, "9")) == ENOTEMPTY);
  CHECK(errno_of(mount->rename(l, "9", zero, "below")) == EINVAL);
  REQUIRE(mount->rename(l, "9", kRootIno, "new"));
  CHECK(mount.ino("new") == zero);
  CHECK(errno_of(mount->attributes(made)) == ENOENT);
  CHECK(stored_tensors(mount).at("new.a") == kOld);

  // An empty directory stays until it is removed.
  REQUIRE(mount->remove_file(mount.ino("1", l), "a"));
  CHECK(list(mount, mount.ino("1", l)).empty());
  REQUIRE(mount->remove_directory(l, "1"));
  REQUIRE(mount->remove_directory(kRootIno, "l"));
  CHECK(list(mount) == Names{"new"});

  WrittenFile file(mount, "t", zero);
  CHECK(errno_of(mount->remove_directory(kRootIno, "new")) == ENOTEMPTY);
  CHECK(file.write("abc") == 0);
  CHECK(file.save() == 0);
  CHECK(stored_tensors(mount).at("new.t") == "abc");
  REQUIRE(mount->rename(zero, "t", kRootIno, "t"));
  CHECK(stored_tensors(mount).at("t") == "abc");
}

TEST_CASE("a scratch file with a name that no tensor has becomes one when it is renamed", "[fs][edit]") {
  const DrivenFilesystem mount({{"l.0.w", kOld}, {"l.0.v", kThird}}, kTreeLayout);
  const Ino zero = mount->lookup(mount.ino("l"), "0").value().st_ino;
  const auto before = stored_tensors(mount);
  {
    WrittenFile file(mount, ".w.AbC1", zero);
    CHECK(file.write(std::string(kOld.size(), 'n')) == 0);
    CHECK(file.close() == 0);
  }
  CHECK(stored_tensors(mount) == before);
  const Ino temporary = mount->lookup(zero, ".w.AbC1").value().st_ino;
  CHECK(read_ino(mount, temporary) == std::string(kOld.size(), 'n'));
  CHECK(errno_of(mount->rename(zero, ".w.AbC1", zero, "v")) == ENODATA);  // another size
  REQUIRE(mount->rename(zero, ".w.AbC1", zero, "w.x"));                   // no tensor's name either
  CHECK(errno_of(mount->rename(zero, "w.x", zero, "w", RENAME_NOREPLACE)) == EEXIST);
  CHECK(errno_of(mount->rename(zero, "w.x", zero, "w", RENAME_EXCHANGE)) == EINVAL);
  CHECK(stored_tensors(mount) == before);
  REQUIRE(mount->rename(zero, "w.x", zero, "w"));
  CHECK(stored_tensors(mount).at("l.0.w") == std::string(kOld.size(), 'n'));
  CHECK(list(mount, zero) == Names{"v", "w"});
  // A file with a form waits for a name that a tensor can have.
  {
    WrittenFile file(mount, "x.part", zero);
    CHECK(file.write("abc") == 0);
    CHECK(file.save() == 0);
  }
  CHECK(list(mount, zero) == Names{"v", "w", "x.part"});
  REQUIRE(mount->rename(zero, "x.part", zero, "x"));
  CHECK(stored_tensors(mount).at("l.0.x") == "abc");
}

TEST_CASE("layout=flat has no directories to make or move", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  CHECK(errno_of(mount->make_directory(kRootIno, "x")) == EPERM);
  CHECK(errno_of(mount->remove_directory(kRootIno, ".safetensors")) == EPERM);
  CHECK(errno_of(mount->remove_directory(kRootIno, "first")) == ENOTDIR);
  CHECK(errno_of(mount->remove_file(kRootIno, ".safetensors")) == EISDIR);
  CHECK(errno_of(mount->rename(kRootIno, ".safetensors", kRootIno, "x")) == EPERM);
}

TEST_CASE("each user may make a number of directories, and gets them back by removing them",
          "[fs][filesystem][directories]") {
  MountedModelOptions options;
  options.layout = Layout::Tree;
  options.user_limits.directories = 2;
  const DrivenFilesystem mount({{"a.b", "bytes"}}, options);
  const auto make = [&](uid_t user, const char* name) {
    const Requester requester(user, 1);
    return errno_of(mount->make_directory(kRootIno, name));
  };
  CHECK(make(1001, "x") == 0);
  CHECK(make(1001, "x") == EEXIST);  // a refused one does not count
  CHECK(make(1001, "y") == 0);
  CHECK(make(1001, "z") == EDQUOT);
  CHECK(make(1002, "z") == 0);
  REQUIRE(mount->rename(kRootIno, "x", kRootIno, "moved"));
  CHECK(make(1001, "w") == EDQUOT);
  REQUIRE(mount->remove_directory(kRootIno, "moved"));
  CHECK(make(1001, "w") == 0);
}
