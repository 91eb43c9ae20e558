// A tensor's size is fixed. Only the O_TRUNC of an open truncates it. The kernel sends O_TRUNC as a resize
// that names no file descriptor. truncate(2) looks the same and is refused.
#include "tests/fs/descriptor.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

namespace {

constexpr pid_t kThread = 4242;

Process thread(pid_t pid) {
  return {.owner = 1, .pid = pid};
}

}  // namespace

TEST_CASE("truncate by name accepts a tensor's own size only", "[fs][filesystem][truncate]") {
  const DrivenFilesystem mount({{"first", kOld}, {"none", ""}});
  const Ino ino = mount.ino("first");
  CHECK(mount->resize_by_name(ino, 16, kThread));
  CHECK(errno_of(mount->resize_by_name(ino, 15, kThread)) == EINVAL);
  CHECK(errno_of(mount->resize_by_name(ino, 0, kThread)) == EINVAL);
  CHECK(errno_of(mount->resize_by_name(ino, 17, kThread)) == EFBIG);
  CHECK(errno_of(mount->resize_by_name(ino, ~std::uint64_t{0}, kThread)) == EFBIG);
  CHECK(mount->resize_by_name(mount.ino("none"), 0, kThread));
  CHECK(errno_of(mount->resize_by_name(mount.ino("none"), 1, kThread)) == EFBIG);
  CHECK(mount.read("first") == kOld);
}

TEST_CASE_METHOD(Mounted,
                 "the truncation of an open goes to the descriptor that the same thread has just opened",
                 "[fs][filesystem][truncate]") {
  const Ino ino = mount.ino("first");
  Descriptor older(mount, "first", O_WRONLY, thread(kThread));
  Descriptor newer(mount, "first", O_WRONLY, thread(kThread));
  Descriptor stranger(mount, "first", O_WRONLY, thread(kThread + 1));
  REQUIRE(mount->resize_by_name(ino, 0, kThread));
  CHECK(errno_of(newer.close()) == EINVAL);
  CHECK(older.close());
  CHECK(stranger.close());
}

TEST_CASE_METHOD(Mounted, "a descriptor that was written to is no candidate", "[fs][filesystem][truncate]") {
  Descriptor writer(mount, "first", O_WRONLY, thread(kThread));
  REQUIRE(writer.write(kNew, 0));
  CHECK(errno_of(mount->resize_by_name(mount.ino("first"), 0, kThread)) == EINVAL);
  REQUIRE(writer.close());
  CHECK(mount.stored("first") == kNew);
}

TEST_CASE_METHOD(Mounted, "a truncation that came for a descriptor does not come twice",
                 "[fs][filesystem][truncate]") {
  Descriptor writer(mount, "first", O_WRONLY | O_TRUNC, thread(kThread));
  CHECK(errno_of(mount->resize_by_name(mount.ino("first"), 0, kThread)) == EINVAL);
}

TEST_CASE_METHOD(Mounted, "descriptors of other tensors, other threads and readers are no candidates",
                 "[fs][filesystem][truncate]") {
  Descriptor other_tensor(mount, "second", O_WRONLY, thread(kThread));
  Descriptor other_thread(mount, "first", O_WRONLY, thread(kThread + 1));
  const auto reader = mount->open(mount.ino("first"), O_RDONLY, kThread);
  REQUIRE(reader);
  CHECK(errno_of(mount->resize_by_name(mount.ino("first"), 0, kThread)) == EINVAL);
  CHECK(other_tensor.close());
  CHECK(other_thread.close());
}

TEST_CASE_METHOD(Mounted, "threads of another pid namespace look alike: one may truncate, of two none",
                 "[fs][filesystem][truncate]") {
  const Ino ino = mount.ino("first");
  {
    Descriptor writer(mount, "first", O_WRONLY | O_TRUNC, thread(0));
    REQUIRE(writer.write(kNew, 0));
    REQUIRE(writer.close());
    CHECK(mount.stored("first") == kNew);
  }
  Descriptor one(mount, "first", O_WRONLY, thread(0));
  Descriptor other(mount, "first", O_WRONLY, thread(0));
  CHECK(errno_of(mount->resize_by_name(ino, 0, 0)) == EBUSY);
  CHECK(one.close());
  CHECK(other.close());
  CHECK(mount.stored("first") == kNew);
}

TEST_CASE_METHOD(Mounted, "ftruncate cuts and lengthens what is pending, the archive keeps its size",
                 "[fs][filesystem][truncate]") {
  Descriptor writer(mount, "first", O_RDWR);
  REQUIRE(writer.resize(4));
  CHECK(mount.read("first") == "AAAA");
  REQUIRE(writer.resize(16));
  CHECK(mount.read("first") == "AAAA" + std::string(12, '\0'));
  CHECK(mount.stored("first") == kOld);
  REQUIRE(writer.close());
  CHECK(mount.stored("first") == "AAAA" + std::string(12, '\0'));
}

TEST_CASE_METHOD(Mounted, "a descriptor is no candidate once its thread has opened something else",
                 "[fs][filesystem][truncate]") {
  Descriptor writer(mount, "first", O_WRONLY, thread(kThread));
  const Descriptor other(mount, "second", O_WRONLY, thread(kThread));
  CHECK(errno_of(mount->resize_by_name(mount.ino("first"), 0, kThread)) == EINVAL);
  REQUIRE(writer.write("patch", 0));
  CHECK(writer.close());
}

TEST_CASE_METHOD(Mounted,
                 "truncate to nothing right after an open is that open's O_TRUNC: the close needs all bytes",
                 "[fs][filesystem][truncate]") {
  Descriptor writer(mount, "first", O_WRONLY, thread(kThread));
  REQUIRE(mount->resize_by_name(mount.ino("first"), 0, kThread));
  CHECK(errno_of(writer.flush()) == EINVAL);
  REQUIRE(writer.write(kNew, 0));
  CHECK(writer.close());
  CHECK(mount.stored("first") == kNew);
}
