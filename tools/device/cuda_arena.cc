// Allocates private arenas with cudaMalloc, shareable ones with virtual memory.
#include "tools/device/cuda_arena.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "core/base/mutex.h"
#include "tools/device/cuda_driver.h"
#include "tools/device/cuda_error.h"
#include "tools/device/cuda_scope.h"
#include "tools/device/later_releases.h"

namespace stfs::device {
namespace {

Result<const CudaDriver*> driver_of(const Device& device) {
  const CudaDriverAnswer answer = cuda_driver();
  if (answer.driver == nullptr) return fail_cuda(device.name(), "virtual memory", answer.error);
  return answer.driver;
}

tl::unexpected<Error> fail_driver(const CudaDriver& driver, const Device& device, std::string_view what,
                                  CUresult error) {
  const std::string message = fmt::format("{}: {}: {}", device.name(), what, driver.explain(error));
  if (error == CUDA_ERROR_OUT_OF_MEMORY) return fail(ErrorCode::OutOfMemory, ENOMEM, message);
  if (error == CUDA_ERROR_NOT_SUPPORTED) return fail(ErrorCode::InvalidArgument, ENOTSUP, message);
  return fail(ErrorCode::System, EIO, message);
}

/// Waits until the device has finished its work. Another thread may capture a stream: this thread's wait is
/// not part of the capture, and must not break it.
void wait_for_device() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  constexpr auto kLook = std::chrono::milliseconds(10);
  while (cudaDeviceSynchronize() == cudaErrorStreamCaptureUnsupported) std::this_thread::sleep_for(kLook);
  static_cast<void>(cudaGetLastError());
}

class PlainArena final : public Arena {
 public:
  PlainArena(Device device, void* address, std::uint64_t size_bytes)
      : device_(std::move(device)), address_(address), size_bytes_(size_bytes) {}
  ~PlainArena() override {
    const CudaScope here(device_);
    cudaFree(address_);
  }
  PlainArena(const PlainArena&) = delete;
  PlainArena& operator=(const PlainArena&) = delete;

  const Device& device() const override { return device_; }
  std::uint64_t size_bytes() const override { return size_bytes_; }
  void* address() const override { return address_; }
  std::span<std::byte> host_bytes() override { return {}; }
  bool is_read_only() const override { return false; }
  Result<UniqueFd> share() override {
    return fail(ErrorCode::InvalidArgument, ENOTSUP,
                device_.name() + ": this memory was not allocated to be shared");
  }

 private:
  Device device_;
  void* address_;
  std::uint64_t size_bytes_;
};

/// Owns the allocation, the address range and the map. Any of them may be missing after a failure.
class SharedArena final : public Arena {
 public:
  SharedArena(const CudaDriver& driver, Device device, std::uint64_t size_bytes, bool is_adopted)
      : driver_(driver), device_(std::move(device)), size_bytes_(size_bytes), is_adopted_(is_adopted) {}
  ~SharedArena() override {
    LaterReleases::of_process().add([&driver = driver_, device = device_, memory = memory_,
                                     address = address_, mapped_bytes = mapped_bytes_,
                                     has_memory = has_memory_, is_mapped = is_mapped_] {
      const CudaScope here(device);
      if (is_mapped) {
        wait_for_device();
        driver.unmap(address, mapped_bytes);
      }
      if (address != 0) driver.free(address, mapped_bytes);
      if (has_memory) driver.release(memory);
    });
  }
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  const Device& device() const override { return device_; }
  std::uint64_t size_bytes() const override { return size_bytes_; }
  void* address() const override {
    return reinterpret_cast<void*>(address_);
  }  // CUDA converts the number to a pointer in the same way
  std::span<std::byte> host_bytes() override { return {}; }
  bool is_read_only() const override { return is_read_only_; }

  Result<UniqueFd> share() override {
    if (is_adopted_) {
      return fail(ErrorCode::InvalidArgument, ENOTSUP,
                  device_.name() + ": memory of another process cannot be shared again");
    }
    const MutexLock lock(mutex_);
    const CudaScope here(device_);
    if (!is_read_only_) {
      RETURN_IF_ERROR(allow(CU_MEM_ACCESS_FLAGS_PROT_READ));
    }
    int fd = -1;
    const CUresult error = driver_.export_handle(&fd, memory_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (error != CUDA_SUCCESS) return fail_driver(driver_, device_, "share memory", error);
    return UniqueFd(fd);
  }

  Result<void> create() {
    RETURN_IF_ERROR(check_support());
    CUmemAllocationProp properties = wanted();
    RETURN_IF_ERROR(measure(properties));
    CUresult error = driver_.create(&memory_, mapped_bytes_, &properties, 0);
    if (error == CUDA_ERROR_OUT_OF_MEMORY) {
      LaterReleases::of_process().wait();
      error = driver_.create(&memory_, mapped_bytes_, &properties, 0);
    }
    if (error != CUDA_SUCCESS) return fail_driver(driver_, device_, "allocate memory", error);
    has_memory_ = true;
    return map(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }

  Result<void> import(int fd) {
    RETURN_IF_ERROR(check_support());
    const auto handle =
        reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd));  // the driver expects this form
    CUresult error = driver_.import_handle(&memory_, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (error != CUDA_SUCCESS) return fail_driver(driver_, device_, "take over memory", error);
    has_memory_ = true;
    CUmemAllocationProp properties{};
    error = driver_.properties(&properties, memory_);
    if (error != CUDA_SUCCESS) return fail_driver(driver_, device_, "ask about memory", error);
    if (properties.location.id != device_.index) {
      return fail(ErrorCode::InvalidArgument, EINVAL,
                  fmt::format("{}: the memory lies on cuda:{}", device_.name(), properties.location.id));
    }
    RETURN_IF_ERROR(measure(wanted()));
    return map(CU_MEM_ACCESS_FLAGS_PROT_READ);
  }

 private:
  /// Checks that the device supports sharing. ENOTSUP names the missing feature.
  [[nodiscard]] Result<void> check_support() const {
    constexpr std::array kNeeded = {
        std::pair(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory"),
        std::pair(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
                  "memory as a file descriptor")};
    CUdevice device = 0;
    CUresult error = driver_.device(&device, device_.index);
    for (const auto& [attribute, what] : kNeeded) {
      int is_supported = 0;
      if (error == CUDA_SUCCESS) error = driver_.attribute(&is_supported, attribute, device);
      if (error != CUDA_SUCCESS) return fail_driver(driver_, device_, "ask what it supports", error);
      if (is_supported == 0) {
        return fail(ErrorCode::InvalidArgument, ENOTSUP,
                    fmt::format("{}: share memory: this GPU or its driver does not support {}",
                                device_.name(), what));
      }
    }
    return {};
  }

  [[nodiscard]] CUmemAllocationProp wanted() const {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device_.index;
    return properties;
  }

  Result<void> measure(const CUmemAllocationProp& properties) {
    std::size_t granularity = 0;
    const CUresult error = driver_.granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (error != CUDA_SUCCESS) return fail_driver(driver_, device_, "virtual memory", error);
    mapped_bytes_ = (std::max<std::uint64_t>(size_bytes_, 1) + granularity - 1) / granularity * granularity;
    return {};
  }

  Result<void> map(CUmemAccess_flags access) {
    CUresult error = driver_.reserve(&address_, mapped_bytes_, 0, 0, 0);
    if (error != CUDA_SUCCESS) {
      address_ = 0;
      return fail_driver(driver_, device_, "reserve addresses", error);
    }
    error = driver_.map(address_, mapped_bytes_, 0, memory_, 0);
    if (error != CUDA_SUCCESS) return fail_driver(driver_, device_, "map memory", error);
    is_mapped_ = true;
    return allow(access);
  }

  Result<void> allow(CUmemAccess_flags access) {
    CUmemAccessDesc description{};
    description.location = wanted().location;
    description.flags = access;
    const CUresult error = driver_.set_access(address_, mapped_bytes_, &description, 1);
    if (error != CUDA_SUCCESS) return fail_driver(driver_, device_, "set access to memory", error);
    is_read_only_ = access == CU_MEM_ACCESS_FLAGS_PROT_READ;
    return {};
  }

  const CudaDriver& driver_;
  Device device_;
  std::uint64_t size_bytes_;
  bool is_adopted_;
  std::size_t mapped_bytes_ = 0;  // a multiple of the device's allocation granularity
  CUmemGenericAllocationHandle memory_ = 0;
  bool has_memory_ = false;
  CUdeviceptr address_ = 0;
  bool is_mapped_ = false;
  Mutex mutex_;  // held during sharing
  std::atomic<bool> is_read_only_ = false;
};

}  // namespace

Result<std::shared_ptr<Arena>> allocate_cuda_arena(const Device& device, std::uint64_t size_bytes,
                                                   bool is_shareable) {
  if (!is_shareable) {
    void* address = nullptr;
    const cudaError_t error =
        cudaMalloc(&address, static_cast<std::size_t>(std::max<std::uint64_t>(size_bytes, 1)));
    if (error != cudaSuccess) return fail_cuda(device.name(), "allocate memory", error);
    return std::make_shared<PlainArena>(device, address, size_bytes);
  }
  const auto driver = driver_of(device);
  RETURN_IF_ERROR(driver);
  auto arena = std::make_shared<SharedArena>(**driver, device, size_bytes, false);
  RETURN_IF_ERROR(arena->create());
  return arena;
}

Result<std::shared_ptr<Arena>> adopt_cuda_arena(const Device& device, UniqueFd descriptor,
                                                std::uint64_t size_bytes) {
  const auto driver = driver_of(device);
  RETURN_IF_ERROR(driver);
  auto arena = std::make_shared<SharedArena>(**driver, device, size_bytes, true);
  RETURN_IF_ERROR(arena->import(descriptor.get()));
  return arena;
}

}  // namespace stfs::device
