// Space is reserved, or refused without having been taken from everybody else in between.
#include "core/storage/disk_space.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <string>

#include "core/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;

namespace {

struct stat status_of(int fd) {
  struct stat status {};
  REQUIRE(::fstat(fd, &status) == 0);
  return status;
}

}  // namespace

TEST_CASE("space is reserved behind a file's end or within a larger file", "[core][disk_space]") {
  const test::TemporaryDirectory directory;
  const UniqueFd file(::open((directory / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(file);
  CHECK(reserve_space(file.get(), {0, 0}, GrowsFile::Yes) == 0);
  const int kept = reserve_space(file.get(), {0, 100'000}, GrowsFile::No);
  CHECK((kept == 0 || kept == EOPNOTSUPP));
  CHECK(status_of(file.get()).st_size == 0);
  const int grown = reserve_space(file.get(), {0, 200'000}, GrowsFile::Yes);
  CHECK(grown == kept);
  if (grown == 0) CHECK(status_of(file.get()).st_size == 200'000);
}

TEST_CASE("what can't fit is refused at once, and no block of the disk is taken for it",
          "[core][disk_space]") {
  const test::TemporaryDirectory directory;
  const UniqueFd file(::open((directory / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(file);
  struct statvfs disk {};
  REQUIRE(::fstatvfs(file.get(), &disk) == 0);
  const std::uint64_t too_much = (disk.f_bfree + (1U << 20U)) * disk.f_frsize;
  for (const GrowsFile grows : {GrowsFile::No, GrowsFile::Yes}) {
    const int why = reserve_space(file.get(), {0, too_much}, grows);
    CHECK((why == ENOSPC || why == EOPNOTSUPP || why == EFBIG));
    CHECK(status_of(file.get()).st_blocks * 512 < 1 << 20);
    CHECK(status_of(file.get()).st_size <= 1);
  }
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<off_t>::max());
  CHECK(reserve_space(file.get(), {kMost, 2}, GrowsFile::No) == EFBIG);
  CHECK(reserve_space(file.get(), {kMost + 1, 1}, GrowsFile::No) == EFBIG);
}

TEST_CASE("holes are told from bytes", "[core][disk_space]") {
  const test::TemporaryDirectory directory;
  const UniqueFd file(::open((directory / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  REQUIRE(file);
  constexpr std::uint64_t kMiB = 1 << 20;
  const std::string bytes(kMiB, 'b');
  REQUIRE(::pwrite(file.get(), bytes.data(), bytes.size(), 2 * kMiB) == static_cast<ssize_t>(kMiB));
  REQUIRE(::ftruncate(file.get(), 8 * kMiB) == 0);
  CHECK(has_bytes(file.get(), {0, 8 * kMiB}, kMiB));
  CHECK(has_bytes(file.get(), {0, 8 * kMiB}, 0));
  CHECK_FALSE(has_bytes(file.get(), {0, 8 * kMiB}, 2 * kMiB));
  CHECK_FALSE(has_bytes(file.get(), {4 * kMiB, 4 * kMiB}, 1));
  CHECK(has_bytes(file.get(), {2 * kMiB, kMiB / 2}, kMiB / 2));
  CHECK_FALSE(has_bytes(file.get(), {2 * kMiB, kMiB / 2}, kMiB));
  CHECK(has_bytes(-1, {0, 1}, 1));
}
