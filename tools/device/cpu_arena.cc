// Maps, seals and adopts arenas in the host's memory.
#include "tools/device/cpu_arena.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "core/base/mutex.h"
#include "tools/text/quantity.h"

namespace stfs::device {
namespace {

constexpr std::uint64_t kHugePageBytes = 2U << 20U;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

tl::unexpected<Error> no_memory(std::uint64_t size_bytes, int why) {
  return fail(ErrorCode::OutOfMemory, why,
              fmt::format("cpu: {} of memory cannot be allocated: {}", tools::human_size(size_bytes),
                          std::generic_category().message(why)));
}

/// Owns a map of whole pages and unmaps it at the end.
class Map {
 public:
  Map(std::byte* begin, std::size_t size_bytes) : begin_(begin), size_bytes_(size_bytes) {}
  Map(const Map&) = delete;
  Map& operator=(const Map&) = delete;
  ~Map() {
    if (size_bytes_ > 0) ::munmap(begin_, size_bytes_);
  }
  [[nodiscard]] std::byte* begin() const { return begin_; }
  [[nodiscard]] std::size_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* begin_;
  std::size_t size_bytes_;
};

/// Maps with the alignment of huge pages and unmaps the surplus before and after the arena.
Result<std::byte*> map_aligned(std::size_t size_bytes, int flags, int fd) {
  void* const room = ::mmap(nullptr, size_bytes + kHugePageBytes, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return no_memory(size_bytes, errno);
  auto* const from = static_cast<std::byte*>(room);
  const auto address = reinterpret_cast<std::uintptr_t>(room);
  const std::size_t before = (kHugePageBytes - address % kHugePageBytes) % kHugePageBytes;
  if (before > 0) ::munmap(from, before);
  const std::size_t after = kHugePageBytes - before;
  if (after > 0) ::munmap(from + before + size_bytes, after);
  if (::mmap(from + before, size_bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int why = errno;
    ::munmap(from + before, size_bytes);
    return no_memory(size_bytes, why);
  }
  // With small pages, faults and page tables cost as much as the copy itself. This is only advice, so a
  // failure is ignored.
  ::madvise(from + before, size_bytes, MADV_HUGEPAGE);
  return from + before;
}

class CpuArena final : public Arena {
 public:
  CpuArena(std::byte* begin, std::size_t mapped_bytes, std::uint64_t size_bytes, UniqueFd memory,
           bool is_read_only)
      : map_(begin, mapped_bytes),
        size_bytes_(size_bytes),
        memory_(std::move(memory)),
        is_adopted_(is_read_only),
        is_read_only_(is_read_only) {}

  const Device& device() const override { return device_; }
  std::uint64_t size_bytes() const override { return size_bytes_; }
  void* address() const override { return map_.begin(); }
  std::span<std::byte> host_bytes() override { return {map_.begin(), static_cast<std::size_t>(size_bytes_)}; }
  bool is_read_only() const override { return is_read_only_; }

  Result<UniqueFd> share() override {
    if (!memory_) {
      return fail(ErrorCode::InvalidArgument, ENOTSUP,
                  is_adopted_ ? "cpu: memory of another process cannot be shared again"
                              : "cpu: this memory was not allocated to be shared");
    }
    const MutexLock lock(mutex_);
    if (!is_read_only_) {
      RETURN_IF_ERROR(seal());
    }
    UniqueFd copy(::fcntl(memory_.get(), F_DUPFD_CLOEXEC, 0));
    if (!copy) return fail_system(errno, "cpu", "share memory");
    return copy;
  }

 private:
  Result<void> remap(int protection, int kind) {
    if (::mmap(map_.begin(), map_.size_bytes(), protection, kind | MAP_FIXED, memory_.get(), 0) ==
        MAP_FAILED) {
      return fail_system(errno, "cpu", "map memory anew");
    }
    ::madvise(map_.begin(), map_.size_bytes(), MADV_HUGEPAGE);
    return {};
  }

  Result<void> seal() {
    RETURN_IF_ERROR(remap(PROT_READ, MAP_PRIVATE));
    if (::fcntl(memory_.get(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) < 0) {
      auto failed = fail_system(errno, "cpu", "seal memory");
      RETURN_IF_ERROR(remap(PROT_READ | PROT_WRITE, MAP_SHARED));
      return failed;
    }
    is_read_only_ = true;
    return {};
  }

  Device device_;
  Map map_;
  std::uint64_t size_bytes_;
  UniqueFd memory_;  // a memfd, if the arena is shareable
  bool is_adopted_;
  Mutex mutex_;  // held during sealing
  std::atomic<bool> is_read_only_;
};

}  // namespace

Result<std::shared_ptr<Arena>> allocate_cpu_arena(std::uint64_t size_bytes, bool is_shareable) {
  // A map cannot be empty. The size is a whole number of pages, so that the end of the file is the end of the
  // map; map_aligned() unmaps its surplus in whole pages. Pages have 4, 16 or 64 KiB.
  static const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t mapped_bytes =
      (std::max<std::uint64_t>(size_bytes, 1) + page_bytes - 1) / page_bytes * page_bytes;
  if (!is_shareable) {
    auto begin = map_aligned(mapped_bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    RETURN_IF_ERROR(begin);
    return std::make_shared<CpuArena>(*begin, mapped_bytes, size_bytes, UniqueFd(), false);
  }
  UniqueFd memory(::memfd_create("safetensorsfs arena", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return fail_system(errno, "cpu", "create shareable memory");
  if (::ftruncate(memory.get(), static_cast<off_t>(mapped_bytes)) < 0) return no_memory(mapped_bytes, errno);
  auto begin = map_aligned(mapped_bytes, MAP_SHARED | MAP_NORESERVE, memory.get());
  RETURN_IF_ERROR(begin);
  return std::make_shared<CpuArena>(*begin, mapped_bytes, size_bytes, std::move(memory), false);
}

Result<std::shared_ptr<Arena>> adopt_cpu_arena(UniqueFd descriptor, std::uint64_t size_bytes) {
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  struct stat status {};
  if (seals < 0 || ::fstat(descriptor.get(), &status) < 0) {
    return fail(ErrorCode::InvalidArgument, EINVAL, "cpu: the descriptor is not sealed memory");
  }
  if ((seals & kSeals) != kSeals) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                "cpu: the memory is not sealed: its owner could change or truncate it");
  }
  if (static_cast<std::uint64_t>(status.st_size) < size_bytes) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("cpu: the memory has {} bytes, expected {}", status.st_size, size_bytes));
  }
  const std::size_t mapped_bytes = static_cast<std::size_t>(std::max<off_t>(status.st_size, 1));
  void* const begin = ::mmap(nullptr, mapped_bytes, PROT_READ, MAP_PRIVATE, descriptor.get(), 0);
  if (begin == MAP_FAILED) return no_memory(mapped_bytes, errno);
  return std::make_shared<CpuArena>(static_cast<std::byte*>(begin), mapped_bytes, size_bytes, UniqueFd(),
                                    true);
}

}  // namespace stfs::device
