// Writes are atomic for each tensor: they are staged until close or fsync. Then all of them are in the
// archive, or none.
#include "tests/fs/descriptor.h"
#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"
#include "tests/support/faulty_storage.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE_METHOD(Mounted, "the archive is untouched until close, and then has all of it",
                 "[fs][filesystem][write]") {
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write(kNew.substr(0, 10), 0));
  REQUIRE(writer.write(kNew.substr(10), 10));
  CHECK(mount.stored("first") == kOld);
  CHECK(mount.read("first") == kOld);
  const auto closed = writer.close();
  REQUIRE(closed);
  CHECK(closed->what == Stale::What::Content);
  CHECK(closed->first == mount.ino("first"));
  CHECK(mount.stored("first") == kNew);
  CHECK(mount.read("first") == kNew);
  CHECK(mount.stored("second") == kSecond);
  CHECK(mount->attributes(mount.ino("first"))->st_size == 16);
}

TEST_CASE_METHOD(Mounted, "a patch without truncation keeps the bytes around it", "[fs][filesystem][write]") {
  Descriptor writer(mount, "first", O_WRONLY);
  REQUIRE(writer.write("xy", 7));
  REQUIRE(writer.close());
  CHECK(mount.stored("first") == "AAAAAAAxyAAAAAAA");
}

TEST_CASE_METHOD(Mounted, "a hole that the writer leaves behind a truncation is zeros",
                 "[fs][filesystem][write]") {
  Descriptor writer(mount, "first", O_WRONLY | O_TRUNC);
  REQUIRE(writer.write("end", 13));
  REQUIRE(writer.close());
  CHECK(mount.stored("first") == std::string(13, '\0') + "end");
}

TEST_CASE_METHOD(Mounted,
                 "a handle opened write-only is isolated: others read the old tensor until the commit",
                 "[fs][filesystem][write]") {
  Descriptor writer(mount, "first", O_WRONLY | O_TRUNC);
  CHECK(writer.file().kind == FileKind::Isolated);
  REQUIRE(writer.write("0123", 0));
  CHECK(mount.read("first") == kOld);
  CHECK(mount->attributes(mount.ino("first"))->st_size == 16);
  REQUIRE(writer.write(kNew.substr(4), 4));
  CHECK(mount.read("first") == kOld);
  REQUIRE(writer.close());
  CHECK(mount.read("first") == kNew);
}

TEST_CASE_METHOD(Mounted, "two isolated writers do not see each other; the last close wins",
                 "[fs][filesystem][write]") {
  Descriptor one(mount, "first", O_WRONLY);
  Descriptor other(mount, "first", O_WRONLY);
  REQUIRE(one.write("11", 0));
  REQUIRE(other.write("2", 1));
  REQUIRE(other.close());
  CHECK(mount.stored("first") == "A2AAAAAAAAAAAAAA");
  REQUIRE(one.close());
  CHECK(mount.stored("first") == "11AAAAAAAAAAAAAA");
}

TEST_CASE_METHOD(Mounted, "descriptors for reading and writing share what is pending",
                 "[fs][filesystem][write]") {
  Descriptor one(mount, "first", O_RDWR);
  Descriptor other(mount, "first", O_RDWR, {.owner = 2, .pid = ::getpid()});
  CHECK(one.file().kind == FileKind::Shared);
  REQUIRE(one.write("read your writes", 0));
  CHECK(mount.read("first") == "read your writes");
  REQUIRE(other.write("W", 0));
  CHECK(mount.read("first") == "Wead your writes");
  CHECK(mount.stored("first") == kOld);
  const auto closed = one.close();
  REQUIRE(closed);
  CHECK(closed->what == Stale::What::Attributes);
  CHECK(mount.stored("first") == "Wead your writes");
  CHECK(other.close());
}

TEST_CASE_METHOD(Mounted, "a shared truncation shows its size to everybody until it is whole again",
                 "[fs][filesystem][write]") {
  Descriptor writer(mount, "first", O_RDWR | O_TRUNC);
  CHECK(mount->attributes(mount.ino("first"))->st_size == 0);
  CHECK(mount.read("first") == "");
  REQUIRE(writer.write("0123", 0));
  CHECK(mount->attributes(mount.ino("first"))->st_size == 4);
  CHECK(mount.read("first") == "0123");
  CHECK(mount.stored("first") == kOld);
}

TEST_CASE_METHOD(Mounted, "fsync commits what is whole and refuses what is not, which may still be completed",
                 "[fs][filesystem][write]") {
  for (const int access : {O_WRONLY, O_RDWR}) {
    Descriptor writer(mount, "first", access | O_TRUNC);
    CHECK(errno_of(writer.sync()) == EINVAL);
    REQUIRE(writer.write(kNew.substr(0, 8), 0));
    const auto refused = writer.sync();
    REQUIRE_FALSE(refused);
    CHECK(refused.error().message.find("8 bytes were written, U8 [16] needs 16") != std::string::npos);
    REQUIRE(writer.write(kNew.substr(8), 8));
    const auto synced = writer.sync();
    REQUIRE(synced);
    CHECK(synced->what == Stale::What::Attributes);  // the tensor was never read
    CHECK(mount.stored("first") == kNew);
    CHECK(writer.sync()->what == Stale::What::Nothing);
    CHECK(writer.close()->what == Stale::What::Nothing);
  }
}

TEST_CASE_METHOD(Mounted, "after a commit the same descriptor goes on writing", "[fs][filesystem][write]") {
  Descriptor writer(mount, "first", O_RDWR);
  REQUIRE(writer.write("1", 0));
  REQUIRE(writer.sync());
  REQUIRE(writer.write("2", 1));
  CHECK(mount.read("first") == "12AAAAAAAAAAAAAA");
  CHECK(mount.stored("first") == "1AAAAAAAAAAAAAAA");
  REQUIRE(writer.close());
  CHECK(mount.stored("first") == "12AAAAAAAAAAAAAA");
}

TEST_CASE_METHOD(Mounted,
                 "writing past the end is EFBIG at once, and what was written does not pass for the whole",
                 "[fs][filesystem][write]") {
  for (const int access : {O_WRONLY, O_RDWR}) {
    Descriptor writer(mount, "first", access);
    REQUIRE(writer.write(kNew, 0));
    CHECK(errno_of(writer.write("x", 16)) == EFBIG);
    CHECK(errno_of(writer.write("x", 0)) == EINVAL);
    CHECK(errno_of(writer.resize(0)) == EINVAL);
    CHECK(errno_of(writer.sync()) == EINVAL);
    CHECK(errno_of(writer.close()) == EINVAL);
    CHECK(mount.stored("first") == kOld);
    CHECK(mount.read("first") == kOld);
  }
  CHECK(captured.contains("write refused"));
}

TEST_CASE_METHOD(Mounted, "EFBIG comes wherever a write passes the end", "[fs][filesystem][write]") {
  const std::vector<std::pair<std::size_t, std::uint64_t>> passing = {
      {17, 0}, {2, 15}, {1, 16}, {1, 1000}, {1, ~std::uint64_t{0}}, {10, ~std::uint64_t{0} - 4}};
  for (const auto& [size, offset] : passing) {
    CAPTURE(size, offset);
    Descriptor writer(mount, "first", O_WRONLY);
    CHECK(errno_of(writer.write(std::string(size, 'x'), offset)) == EFBIG);
  }
  Descriptor resizer(mount, "first", O_WRONLY);
  CHECK(errno_of(resizer.resize(17)) == EFBIG);
  CHECK(errno_of(resizer.close()) == EINVAL);
  CHECK(mount.stored("first") == kOld);
}

TEST_CASE_METHOD(Mounted, "appending to a whole tensor is EFBIG, to a truncated one it fills it",
                 "[fs][filesystem][write]") {
  Descriptor refused(mount, "first", O_WRONLY | O_APPEND);
  CHECK(errno_of(refused.write("x", 0)) == EFBIG);
  refused.release();
  for (const int access : {O_WRONLY, O_RDWR}) {
    Descriptor writer(mount, "first", access | O_APPEND | O_TRUNC);
    // Both writes have an offset that is the kernel's own idea of the end.
    REQUIRE(writer.write(kNew.substr(0, 10), 16));
    REQUIRE(writer.write(kNew.substr(10), 16));
    REQUIRE(writer.close());
    CHECK(mount.stored("first") == kNew);
  }
}

TEST_CASE_METHOD(Mounted, "a synchronous descriptor commits each write that leaves it whole",
                 "[fs][filesystem][write]") {
  for (const int flag : {O_SYNC, O_DSYNC}) {
    Descriptor writer(mount, "first", O_WRONLY | O_TRUNC | flag);
    CHECK(writer.write(kNew.substr(0, 8), 0)->what == Stale::What::Nothing);
    CHECK(writer.write(kNew.substr(8), 8)->what == Stale::What::Attributes);
    CHECK(mount.stored("first") == kNew);
    CHECK(writer.write("X", 3)->what == Stale::What::Attributes);
    CHECK(mount.stored("first") == "012X456789abcdef");
    CHECK(writer.close()->what == Stale::What::Nothing);
  }
  // For a write through the page cache the kernel sends a separate fsync.
  Descriptor shared(mount, "first", O_RDWR | O_SYNC);
  CHECK(shared.write(kOld, 0)->what == Stale::What::Nothing);
  CHECK(mount.stored("first") == "012X456789abcdef");
}

TEST_CASE("a read-only mount refuses every way to write with EROFS", "[fs][filesystem][write]") {
  const DrivenFilesystem mount(kTwoTensors, kReadOnly);
  const Ino ino = mount.ino("first");
  CHECK(errno_of(mount->open(ino, O_WRONLY, 1)) == EROFS);
  CHECK(errno_of(mount->open(ino, O_RDWR, 1)) == EROFS);
  CHECK(errno_of(mount->resize_by_name(ino, 0, 1)) == EROFS);
  const auto reader = mount->open(ino, O_RDONLY, 1);
  REQUIRE(reader);
  CHECK(*reader == nullptr);
}

TEST_CASE_METHOD(Mounted,
                 "what a mapping writes back is staged, cut at the tensor's end, and commits when it goes",
                 "[fs][filesystem][write]") {
  const Ino ino = mount.ino("first");
  Descriptor descriptor(mount, "first", O_RDWR);
  std::string page(4096, 'p');
  REQUIRE(mount->write_back(ino, bytes_of(page), 0));
  REQUIRE(mount->write_back(ino, bytes_of(page), 4096));
  CHECK(mount.read("first") == std::string(16, 'p'));
  CHECK(mount.stored("first") == kOld);
  SECTION("msync") {
    REQUIRE(descriptor.sync());
    CHECK(mount.stored("first") == std::string(16, 'p'));
  }
  SECTION("close") {
    REQUIRE(descriptor.close());
    CHECK(mount.stored("first") == std::string(16, 'p'));
  }
  SECTION("the mapping's end, after the close") {
    REQUIRE(descriptor.flush());
    REQUIRE(mount->write_back(ino, bytes_of("late"), 0));
    CHECK(descriptor.release().what == Stale::What::Attributes);
    CHECK(mount.stored("first") == "latepppppppppppp");
  }
}

TEST_CASE_METHOD(Mounted, "a page that comes back with no descriptor left is an error, not a crash",
                 "[fs][filesystem][write]") {
  CHECK(errno_of(mount->write_back(mount.ino("first"), bytes_of("page"), 0)) == EIO);
  CHECK(mount.stored("first") == kOld);
}

TEST_CASE(
    "a large write in order is accepted early once its space is reserved, and a failing disk tells later",
    "[fs][filesystem]") {
  constexpr std::size_t kPiece = 1 << 20;
  const CapturedStderr captured;
  FaultyStorage storage;
  const DrivenFilesystem mount({{"large", std::string(16 * kPiece, '-')}}, {}, storage);
  OpenFile* file = mount->open(mount.ino("large"), O_WRONLY, 1).value();
  const std::string bytes(kPiece, 'x');
  std::size_t accepted = 0;
  const auto write = [&](std::size_t piece) {
    return mount->write(*file, bytes_of(bytes), piece * kPiece, 1, [&] { ++accepted; });
  };
  REQUIRE(write(0));
  CHECK(accepted == 0);  // it is not known yet whether there is room
  for (std::size_t piece = 1; piece < 6; ++piece) REQUIRE(write(piece));
  const std::size_t before = accepted;
  CHECK(before > 0);
  SECTION("the rest comes, and all of it is committed") {
    for (std::size_t piece = 6; piece < 16; ++piece) REQUIRE(write(piece));
    REQUIRE(mount->flush(*file, 1, 1));
    CHECK((mount.stored("large") == std::string(16 * kPiece, 'x')));
  }
  SECTION("the disk fails behind the writer's back") {
    // All writes fail, because a single failure could be a write of hashes. Lost hashes are computed later.
    storage.plan().set({.nth = 1, .errno_value = EIO, .kind = FileCall::Write, .is_for_good = true});
    CHECK(errno_of(write(6)) == EIO);
    CHECK(accepted == before + 1);
    storage.plan().fail_call(0, 0);
    CHECK(errno_of(write(7)) == EIO);
    CHECK(errno_of(mount->flush(*file, 1, 1)) == EIO);
    CHECK((mount.stored("large") == std::string(16 * kPiece, '-')));
  }
  mount->release(file);
}
