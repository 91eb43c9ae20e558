// Directories of layout=tree are made, moved and removed.
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

  MadeFile file(mount, "t", zero);
  CHECK(errno_of(mount->remove_directory(kRootIno, "new")) == ENOTEMPTY);
  CHECK(file.write("abc") == 0);
  CHECK(file.close() == 0);
  CHECK(stored_tensors(mount).at("new.t") == "abc");
  CHECK(mount->create(zero, "x.y", O_WRONLY, 1).error().errno_value == EILSEQ);
  REQUIRE(mount->rename(zero, "t", kRootIno, "t"));
  CHECK(stored_tensors(mount).at("t") == "abc");
}

TEST_CASE("layout=flat has no directories to make or move", "[fs][edit]") {
  const DrivenFilesystem mount(kThree);
  CHECK(errno_of(mount->make_directory(kRootIno, "x")) == EPERM);
  CHECK(errno_of(mount->remove_directory(kRootIno, ".safetensors")) == EPERM);
  CHECK(errno_of(mount->remove_directory(kRootIno, "first")) == ENOTDIR);
  CHECK(errno_of(mount->remove_file(kRootIno, ".safetensors")) == EISDIR);
  CHECK(errno_of(mount->rename(kRootIno, ".safetensors", kRootIno, "x")) == EPERM);
}
