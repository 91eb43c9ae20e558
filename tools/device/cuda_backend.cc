// NVIDIA GPUs through the CUDA runtime. The runtime is linked statically, and the program starts without a
// driver.
#include "tools/device/cuda_backend.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "tools/device/cuda_arena.h"
#include "tools/device/cuda_devices.h"
#include "tools/device/cuda_driver.h"
#include "tools/device/cuda_error.h"
#include "tools/device/cuda_queue.h"
#include "tools/device/cuda_scope.h"
#include "tools/text/quantity.h"

namespace stfs::device {
namespace {

/// Page-locked memory, which all GPUs can use in the same way.
class CudaStaging final : public Staging {
 public:
  CudaStaging(Device device, std::span<std::byte> memory) : device_(std::move(device)), memory_(memory) {}
  CudaStaging(const CudaStaging&) = delete;
  CudaStaging& operator=(const CudaStaging&) = delete;
  ~CudaStaging() override {
    const CudaScope here(device_);
    cudaFreeHost(memory_.data());
  }
  std::span<std::byte> bytes() override { return memory_; }

 private:
  Device device_;
  std::span<std::byte> memory_;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(Device device) : device_(std::move(device)) {}

  const Device& device() const override { return device_; }
  bool is_host() const override { return false; }

  Result<MemoryInfo> memory() override {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    const CudaScope here(device_);
    cudaError_t error = here.error();
    if (error == cudaSuccess) error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error != cudaSuccess) return fail_cuda(device_.name(), "ask for its memory", error);
    return MemoryInfo{.free_bytes = free_bytes, .total_bytes = total_bytes};
  }

  Result<std::shared_ptr<Arena>> allocate(std::uint64_t size_bytes, bool is_shareable) override {
    const CudaScope here(device_);
    const auto now = memory();
    RETURN_IF_ERROR(now);
    auto arena = allocate_cuda_arena(device_, size_bytes, is_shareable);
    if (!arena && arena.error().errno_value == ENOMEM) {
      return fail(ErrorCode::OutOfMemory, ENOMEM,
                  fmt::format("{}: {} are needed and {} are free", device_.name(),
                              tools::human_size(size_bytes), tools::human_size(now->free_bytes)));
    }
    return arena;
  }

  Result<std::unique_ptr<Staging>> allocate_staging(std::uint64_t size_bytes) override {
    void* memory = nullptr;
    const CudaScope here(device_);
    cudaError_t error = here.error();
    if (error == cudaSuccess) {
      error = cudaHostAlloc(&memory, static_cast<std::size_t>(size_bytes), cudaHostAllocPortable);
    }
    if (error != cudaSuccess) {
      return fail_cuda(device_.name(), fmt::format("page-lock {}", tools::human_size(size_bytes)), error);
    }
    return std::make_unique<CudaStaging>(
        device_, std::span(static_cast<std::byte*>(memory), static_cast<std::size_t>(size_bytes)));
  }

  Result<std::unique_ptr<Queue>> open_queue() override {
    const CudaScope here(device_);
    if (here.error() != cudaSuccess) return fail_cuda(device_.name(), "open a stream", here.error());
    return open_cuda_queue(device_);
  }

  Result<std::shared_ptr<Arena>> adopt(UniqueFd descriptor, std::uint64_t size_bytes) override {
    const CudaScope here(device_);
    if (here.error() != cudaSuccess) return fail_cuda(device_.name(), "take over memory", here.error());
    return adopt_cuda_arena(device_, std::move(descriptor), size_bytes);
  }

 private:
  Device device_;
};

Result<int> count_devices() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
  if (error == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());
  return fail(ErrorCode::NotFound, ENODEV, explain_cuda(error));
}

}  // namespace

Result<std::vector<DeviceInfo>> list_cuda_devices() {
  // The runtime gives the best reason why there is no GPU: for example, it distinguishes a missing driver
  // from an old one.
  RETURN_IF_ERROR(count_devices());
  const CudaDriverAnswer answer = cuda_driver();
  if (answer.driver == nullptr) return fail(ErrorCode::NotFound, ENODEV, explain_cuda(answer.error));
  CudaDeviceRows rows = list_cuda_devices(*answer.driver, managed_free_memory);
  // The driver and the runtime use the same numbers for these errors.
  if (rows.error != CUDA_SUCCESS) {
    return fail(ErrorCode::NotFound, ENODEV, explain_cuda(static_cast<cudaError_t>(rows.error)));
  }
  return std::move(rows.devices);
}

Result<std::shared_ptr<Backend>> open_cuda_backend(const Device& device) {
  const auto count = count_devices();
  if (!count) return tl::unexpected(Error(count.error()).within(device.name()));
  if (device.index >= *count) {
    return fail(ErrorCode::NotFound, ENODEV,
                fmt::format("{}: no such GPU: there {} {}, from cuda:0 on", device.name(),
                            *count == 1 ? "is" : "are", *count));
  }
  // Create the primary context now, so that a fault of the device shows here.
  const CudaScope here(device);
  cudaError_t error = here.error();
  if (error == cudaSuccess) error = cudaFree(nullptr);
  if (error != cudaSuccess) return fail_cuda(device.name(), "open", error);
  return std::make_shared<CudaBackend>(device);
}

}  // namespace stfs::device
