#include "core/storage/mapped_region.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "core/storage/bus_guard.h"
#include "core/storage/kernel_copy.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // linux/mman.h, 5.14; older C libraries do not know it yet
#endif

namespace stfs {
namespace {

/// Proves by a read that the range exists, and leaves it in the page cache. For kernels that can't populate a
/// mapping.
Result<void> touch_by_reading(ByteRange range, const File& file) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(range.size_bytes));
  return file.read(bytes, range.offset);
}

}  // namespace

Result<void> MappedSpan::copy_to(std::span<std::byte> to) const {
  return copy_by_kernel(bytes_, to);
}

Result<MappedRegion> MappedRegion::map(const File& file, std::uint64_t size_bytes) {
  MappedRegion region;
  if (size_bytes == 0) return region;
  void* data = ::mmap(nullptr, size_bytes, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (data == MAP_FAILED) return fail_system(errno, "archive", "map");
  region.data_ = static_cast<std::byte*>(data);
  region.size_bytes_ = size_bytes;
  return region;
}

MappedRegion::MappedRegion(MappedRegion&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

MappedRegion& MappedRegion::operator=(MappedRegion&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

MappedRegion::~MappedRegion() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

std::span<const std::byte> MappedRegion::bytes(ByteRange range) const {
  return {data_ + range.offset, static_cast<std::size_t>(range.size_bytes)};
}

Result<void> MappedRegion::remap(const File& file) {
  if (data_ == nullptr) return {};
  // MAP_FIXED removes the old mapping even if the new one fails, so try the new one elsewhere first.
  void* trial = ::mmap(nullptr, size_bytes_, PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (trial == MAP_FAILED) return fail_system(errno, "archive", "map its copy");
  ::munmap(trial, size_bytes_);
  void* data = ::mmap(data_, size_bytes_, PROT_READ, MAP_SHARED | MAP_FIXED, file.descriptor(), 0);
  return data == MAP_FAILED ? fail_system(errno, "archive", "map its copy") : Result<void>{};
}

bool MappedRegion::copy_from(ByteRange range, const Copy& copy) const {
  const std::span<const std::byte> from = bytes(range);
  return copy_guarded(from, [&] { copy(from); });
}

Result<void> MappedRegion::populate(ByteRange range, const File& file) const {
  if (range.empty()) return {};
  static const std::uint64_t page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t from = range.offset - range.offset % page_bytes;
  const std::size_t length = static_cast<std::size_t>(range.end() - from);
  while (::madvise(data_ + from, length, MADV_POPULATE_READ) < 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EINVAL) return touch_by_reading(range, file);
    return fail_system(errno, "archive", "read");
  }
  return {};
}

}  // namespace stfs
