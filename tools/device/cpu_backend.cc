// Opens backends. Has the backend of the CPU, whose queues are threads with a list of jobs.

#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "tools/device/backend.h"
#include "tools/device/conversion.h"
#include "tools/device/cpu_arena.h"
#include "tools/device/cpu_memory.h"
#include "tools/device/cuda_backend.h"
#include "tools/device/digest.h"
#include "tools/text/quantity.h"

namespace stfs::device {
namespace {

class CpuStaging final : public Staging {
 public:
  explicit CpuStaging(std::shared_ptr<Arena> memory) : memory_(std::move(memory)) {}
  std::span<std::byte> bytes() override { return memory_->host_bytes(); }

 private:
  std::shared_ptr<Arena> memory_;
};

/// Returns the bytes of a range of an arena. EINVAL if the range exceeds the arena or the arena is read-only.
Result<std::span<std::byte>> place_in(Arena& arena, std::uint64_t offset, std::uint64_t size_bytes) {
  const auto range = ByteRange::checked(offset, size_bytes);
  if (!range || range->end() > arena.size_bytes() || arena.is_read_only()) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("cpu: {} bytes at {} are not in an arena of {} that can be written to",
                            size_bytes, offset, arena.size_bytes()));
  }
  return arena.host_bytes().subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(size_bytes));
}

class CpuQueue final : public Queue {
 public:
  CpuQueue() : worker_([this] { work(); }) {}
  ~CpuQueue() override {
    {
      const MutexLock lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  Result<void> copy(std::span<const std::byte> from, Arena& to, std::uint64_t to_offset) override {
    auto place = place_in(to, to_offset, from.size());
    RETURN_IF_ERROR(place);
    return start([from, place = *place] { std::memcpy(place.data(), from.data(), from.size()); });
  }

  Result<void> convert(Arena& from, ByteRange range, Dtype from_dtype, Arena& to, std::uint64_t to_offset,
                       Dtype to_dtype) override {
    auto source = place_in(from, range.offset, range.size_bytes);
    RETURN_IF_ERROR(source);
    const std::uint64_t elements = range.size_bytes * 8 / bits_of(from_dtype);
    auto place = place_in(to, to_offset, elements * bits_of(to_dtype) / 8);
    RETURN_IF_ERROR(place);
    return start([this, from_dtype, to_dtype, source = *source, place = *place] {
      const std::uint64_t overflows = convert_elements(from_dtype, source, to_dtype, place);
      const MutexLock lock(mutex_);
      overflows_ += overflows;
    });
  }

  Result<void> digest(Arena& arena, ByteRange range, std::uint64_t* to) override {
    if (range.end() > arena.size_bytes()) {
      return fail(ErrorCode::InvalidArgument, EINVAL, "cpu: the range of a digest leaves its arena");
    }
    const auto bytes = arena.host_bytes().subspan(static_cast<std::size_t>(range.offset),
                                                  static_cast<std::size_t>(range.size_bytes));
    return start([bytes, to] { *to = digest_of(bytes); });
  }

  Result<Mark> mark() override {
    const MutexLock lock(mutex_);
    return started_;
  }
  Result<bool> is_passed(Mark mark) override {
    const MutexLock lock(mutex_);
    return done_ >= mark;
  }
  Result<void> wait_for(Mark mark) override {
    const MutexLock lock(mutex_);
    changed_.wait(mutex_, [&]() REQUIRES(mutex_) { return done_ >= mark; });
    return {};
  }
  Result<std::uint64_t> overflows() override {
    const MutexLock lock(mutex_);
    return overflows_;
  }

 private:
  Result<void> start(std::function<void()> job) {
    {
      const MutexLock lock(mutex_);
      jobs_.push_back(std::move(job));
      started_ += 1;
    }
    changed_.notify_all();
    return {};
  }

  void work() {
    MutexLock lock(mutex_);
    for (;;) {
      changed_.wait(mutex_, [&]() REQUIRES(mutex_) { return is_ending_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
      done_ += 1;
      changed_.notify_all();
    }
  }

  Mutex mutex_;
  Condition changed_;
  std::deque<std::function<void()>> jobs_ GUARDED_BY(mutex_);
  Mark started_ GUARDED_BY(mutex_) = 0;
  Mark done_ GUARDED_BY(mutex_) = 0;
  std::uint64_t overflows_ GUARDED_BY(mutex_) = 0;
  bool is_ending_ GUARDED_BY(mutex_) = false;
  std::thread worker_;  // last, because it uses the other members
};

class CpuBackend final : public Backend {
 public:
  const Device& device() const override { return device_; }
  bool is_host() const override { return true; }
  Result<MemoryInfo> memory() override { return cpu_memory(); }

  Result<std::shared_ptr<Arena>> allocate(std::uint64_t size_bytes, bool is_shareable) override {
    // Check the free memory first. The map itself would succeed, because the kernel allocates pages only when
    // they are written to; that would be too late for an error.
    const std::uint64_t free_bytes = cpu_memory().free_bytes;
    if (size_bytes > free_bytes) {
      return fail(ErrorCode::OutOfMemory, ENOMEM,
                  fmt::format("cpu: {} are needed and {} are free", tools::human_size(size_bytes),
                              tools::human_size(free_bytes)));
    }
    return allocate_cpu_arena(size_bytes, is_shareable);
  }

  Result<std::unique_ptr<Staging>> allocate_staging(std::uint64_t size_bytes) override {
    auto memory = allocate_cpu_arena(size_bytes, false);
    RETURN_IF_ERROR(memory);
    return std::make_unique<CpuStaging>(std::move(*memory));
  }

  Result<std::unique_ptr<Queue>> open_queue() override {
    try {
      return std::make_unique<CpuQueue>();
    } catch (const std::system_error& error) {
      return fail_system(error.code().value(), "cpu", "start a thread");
    }
  }

  Result<std::shared_ptr<Arena>> adopt(UniqueFd descriptor, std::uint64_t size_bytes) override {
    return adopt_cpu_arena(std::move(descriptor), size_bytes);
  }

 private:
  Device device_;
};

}  // namespace

Result<std::shared_ptr<Backend>> Backend::open(const Device& device) {
  return guard_memory([&]() -> Result<std::shared_ptr<Backend>> {
    if (device.kind == Device::Kind::Cuda) return open_cuda_backend(device);
    return std::make_shared<CpuBackend>();
  });
}

}  // namespace stfs::device
