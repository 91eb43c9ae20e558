// Starts copies and kernels on a stream. Each mark is an event.
#include "tools/device/cuda_queue.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <deque>
#include <vector>

#include "tools/device/cuda_error.h"
#include "tools/device/cuda_scope.h"
#include "tools/device/digest.h"
#include "tools/device/kernels.h"

namespace stfs::device {
namespace {

/// The number of sums on the device that may be unfinished at a time. The first one counts overflows.
constexpr std::size_t kSums = 4096;

class CudaQueue final : public Queue {
 public:
  explicit CudaQueue(Device device) : device_(std::move(device)) {}
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;
  ~CudaQueue() override {
    const CudaScope here(device_);
    if (stream_ != nullptr) {
      cudaStreamSynchronize(stream_);
      cudaStreamDestroy(stream_);
    }
    for (const Marked& marked : marked_) cudaEventDestroy(marked.event);
    for (cudaEvent_t event : spare_) cudaEventDestroy(event);
    cudaFree(sums_);
    cudaFreeHost(host_sums_);
  }

  Result<void> open() {
    cudaError_t error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaMalloc(reinterpret_cast<void**>(&sums_), kSums * sizeof *sums_);
    if (error == cudaSuccess) {
      error = cudaHostAlloc(reinterpret_cast<void**>(&host_sums_), kSums * sizeof *host_sums_,
                            cudaHostAllocPortable);
    }
    if (error == cudaSuccess) error = cudaMemsetAsync(sums_, 0, kSums * sizeof *sums_, stream_);
    return told("open a stream", error);
  }

  Result<void> copy(std::span<const std::byte> from, Arena& to, std::uint64_t to_offset) override {
    const CudaScope here(device_);
    RETURN_IF_ERROR(told("copy", here.error()));
    auto place = place_in(to, to_offset, from.size());
    RETURN_IF_ERROR(place);
    return told("copy", cudaMemcpyAsync(*place, from.data(), from.size(), cudaMemcpyHostToDevice, stream_));
  }

  Result<void> convert(Arena& from, ByteRange range, Dtype from_dtype, Arena& to, std::uint64_t to_offset,
                       Dtype to_dtype) override {
    const auto from_format = float_format_of(from_dtype);
    const auto to_format = float_format_of(to_dtype);
    if (!from_format || !to_format || !is_conversion_target(to_dtype)) {
      return fail(ErrorCode::InvalidArgument, EINVAL,
                  fmt::format("{}: {} is not converted to {}", device_.name(), name_of(from_dtype),
                              name_of(to_dtype)));
    }
    const CudaScope here(device_);
    RETURN_IF_ERROR(told("convert", here.error()));
    const unsigned from_bytes = bits_of(from_dtype) / 8;
    const unsigned to_bytes = bits_of(to_dtype) / 8;
    const std::uint64_t count = range.size_bytes / from_bytes;
    auto source = place_in(from, range.offset, range.size_bytes);
    RETURN_IF_ERROR(source);
    auto place = place_in(to, to_offset, count * to_bytes);
    RETURN_IF_ERROR(place);
    return told("convert", start_conversion({*source, *from_format, from_bytes},
                                            {*place, *to_format, to_bytes}, count, sums_, stream_));
  }

  Result<void> digest(Arena& arena, ByteRange range, std::uint64_t* to) override {
    const CudaScope here(device_);
    RETURN_IF_ERROR(told("digest", here.error()));
    auto place = place_in(arena, range.offset, range.size_bytes);
    RETURN_IF_ERROR(place);
    if (next_sum_ == kSums) {
      RETURN_IF_ERROR(told("wait", cudaStreamSynchronize(stream_)));
      deliver(marks_ + 1);
      next_sum_ = 1;
    }
    const std::size_t sum = next_sum_++;
    cudaError_t error = cudaMemsetAsync(sums_ + sum, 0, sizeof *sums_, stream_);
    if (error == cudaSuccess) error = start_digest(*place, range.size_bytes, sums_ + sum, stream_);
    if (error == cudaSuccess) {
      error = cudaMemcpyAsync(host_sums_ + sum, sums_ + sum, sizeof *sums_, cudaMemcpyDeviceToHost, stream_);
    }
    if (error != cudaSuccess) return told("take a digest", error);
    awaited_.push_back({sum, range.size_bytes, to, marks_ + 1});
    return {};
  }

  Result<Mark> mark() override {
    const CudaScope here(device_);
    RETURN_IF_ERROR(told("record an event", here.error()));
    cudaEvent_t event = nullptr;
    cudaError_t error = cudaSuccess;
    if (spare_.empty()) {
      error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    } else {
      event = spare_.back();
      spare_.pop_back();
    }
    if (error == cudaSuccess) {
      marked_.push_back({marks_ + 1, event});
      error = cudaEventRecord(event, stream_);
    }
    RETURN_IF_ERROR(told("record an event", error));
    return ++marks_;
  }

  Result<bool> is_passed(Mark mark) override {
    const CudaScope here(device_);
    RETURN_IF_ERROR(told("ask for an event", here.error()));
    while (!marked_.empty() && marked_.front().mark <= mark) {
      const cudaError_t state = cudaEventQuery(marked_.front().event);
      if (state == cudaErrorNotReady) {
        // The runtime records this as the thread's last error, although it is not an error.
        static_cast<void>(cudaGetLastError());
        return false;
      }
      RETURN_IF_ERROR(told("copy", state));
      pass_front();
    }
    return true;
  }

  Result<void> wait_for(Mark mark) override {
    const CudaScope here(device_);
    RETURN_IF_ERROR(told("wait", here.error()));
    while (!marked_.empty() && marked_.front().mark <= mark) {
      RETURN_IF_ERROR(told("copy", cudaEventSynchronize(marked_.front().event)));
      pass_front();
    }
    return {};
  }

  Result<std::uint64_t> overflows() override {
    const CudaScope here(device_);
    RETURN_IF_ERROR(told("count overflows", here.error()));
    cudaError_t error = cudaMemcpyAsync(host_sums_, sums_, sizeof *sums_, cudaMemcpyDeviceToHost, stream_);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
    RETURN_IF_ERROR(told("count overflows", error));
    return *host_sums_;
  }

 private:
  struct Marked {
    Mark mark = 0;
    cudaEvent_t event = nullptr;
  };
  struct Awaited {
    std::size_t sum = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t* to = nullptr;
    Mark mark = 0;  // the sum is available when this mark is passed
  };

  [[nodiscard]] Result<void> told(std::string_view what, cudaError_t error) const {
    if (error == cudaSuccess) return {};
    return fail_cuda(device_.name(), what, error);
  }

  [[nodiscard]] Result<void*> place_in(Arena& arena, std::uint64_t offset, std::uint64_t size_bytes) const {
    const auto range = ByteRange::checked(offset, size_bytes);
    if (!range || range->end() > arena.size_bytes()) {
      return fail(ErrorCode::InvalidArgument, EINVAL,
                  fmt::format("{}: {} bytes at {} are not in an arena of {}", device_.name(), size_bytes,
                              offset, arena.size_bytes()));
    }
    return static_cast<std::byte*>(arena.address()) + offset;
  }

  void pass_front() {
    deliver(marked_.front().mark);
    spare_.push_back(marked_.front().event);
    marked_.pop_front();
  }

  void deliver(Mark mark) {
    for (; !awaited_.empty() && awaited_.front().mark <= mark; awaited_.pop_front()) {
      const Awaited& awaited = awaited_.front();
      *awaited.to = digest_end(host_sums_[awaited.sum], awaited.size_bytes);
    }
  }

  Device device_;
  cudaStream_t stream_ = nullptr;
  unsigned long long* sums_ = nullptr;       // on the device
  unsigned long long* host_sums_ = nullptr;  // the host's copy of sums_
  std::size_t next_sum_ = 1;
  Mark marks_ = 0;
  std::deque<Marked> marked_;
  std::vector<cudaEvent_t> spare_;
  std::deque<Awaited> awaited_;
};

}  // namespace

Result<std::unique_ptr<Queue>> open_cuda_queue(const Device& device) {
  auto queue = std::make_unique<CudaQueue>(device);
  RETURN_IF_ERROR(queue->open());
  return queue;
}

}  // namespace stfs::device
