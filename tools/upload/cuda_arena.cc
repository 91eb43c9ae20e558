// cudaMalloc for what stays here, virtual memory for what is shared.
#include "tools/upload/cuda_arena.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "tools/upload/cuda_error.h"

namespace stfs::upload {
namespace {

cudaError_t driver_function(const char* name, void** function) {
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  constexpr unsigned kVersion = 12000;  // what these functions looked like then
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, function, kVersion, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, function, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess) return error;
  return found == cudaDriverEntryPointSuccess && *function != nullptr ? cudaSuccess
                                                                      : cudaErrorInsufficientDriver;
}

/// The driver's functions on virtual memory.
struct Driver {
  PFN_cuMemGetAllocationGranularity_v10020 granularity = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemAddressReserve_v10020 reserve = nullptr;
  PFN_cuMemAddressFree_v10020 free = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;
  PFN_cuMemExportToShareableHandle_v10020 export_handle = nullptr;
  PFN_cuMemImportFromShareableHandle_v10020 import_handle = nullptr;
  PFN_cuMemGetAllocationPropertiesFromHandle_v10020 properties = nullptr;
  PFN_cuGetErrorName_v6000 error_name = nullptr;
  cudaError_t error = cudaSuccess;  // of the first that could not be had

  Driver() {
    load("cuMemGetAllocationGranularity", granularity);
    load("cuMemCreate", create);
    load("cuMemRelease", release);
    load("cuMemAddressReserve", reserve);
    load("cuMemAddressFree", free);
    load("cuMemMap", map);
    load("cuMemUnmap", unmap);
    load("cuMemSetAccess", set_access);
    load("cuMemExportToShareableHandle", export_handle);
    load("cuMemImportFromShareableHandle", import_handle);
    load("cuMemGetAllocationPropertiesFromHandle", properties);
    load("cuGetErrorName", error_name);
  }

 private:
  template <class Function>
  void load(const char* name, Function& function) {
    if (error == cudaSuccess) error = driver_function(name, reinterpret_cast<void**>(&function));
  }
};

Result<const Driver*> driver_of(const Device& device) {
  static const Driver driver;
  if (driver.error != cudaSuccess) return fail_cuda(device.name(), "virtual memory", driver.error);
  return &driver;
}

tl::unexpected<Error> fail_driver(const Driver& driver, const Device& device, std::string_view what,
                                  CUresult error) {
  const char* name = nullptr;
  driver.error_name(error, &name);
  const std::string message = fmt::format("{}: {}: {} (CUDA error {})", device.name(), what,
                                          name != nullptr ? name : "unknown", static_cast<int>(error));
  if (error == CUDA_ERROR_OUT_OF_MEMORY) return fail(ErrorCode::OutOfMemory, ENOMEM, message);
  if (error == CUDA_ERROR_NOT_SUPPORTED) return fail(ErrorCode::InvalidArgument, ENOTSUP, message);
  return fail(ErrorCode::System, EIO, message);
}

class PlainArena final : public Arena {
 public:
  PlainArena(Device device, void* address, std::uint64_t size_bytes)
      : device_(std::move(device)), address_(address), size_bytes_(size_bytes) {}
  ~PlainArena() override {
    cudaSetDevice(device_.index);
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

/// Owns the allocation, the addresses and the map, as far as they were come by.
class SharedArena final : public Arena {
 public:
  SharedArena(const Driver& driver, Device device, std::uint64_t size_bytes, bool is_adopted)
      : driver_(driver), device_(std::move(device)), size_bytes_(size_bytes), is_adopted_(is_adopted) {}
  ~SharedArena() override {
    cudaSetDevice(device_.index);
    cudaDeviceSynchronize();  // nothing may use it any more
    if (is_mapped_) driver_.unmap(address_, mapped_bytes_);
    if (address_ != 0) driver_.free(address_, mapped_bytes_);
    if (has_memory_) driver_.release(memory_);
  }
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  const Device& device() const override { return device_; }
  std::uint64_t size_bytes() const override { return size_bytes_; }
  void* address() const override {
    return reinterpret_cast<void*>(address_);
  }  // NOLINT: what CUDA makes of it too
  std::span<std::byte> host_bytes() override { return {}; }
  bool is_read_only() const override { return is_read_only_; }

  Result<UniqueFd> share() override {
    if (is_adopted_) {
      return fail(ErrorCode::InvalidArgument, ENOTSUP,
                  device_.name() + ": memory of another process is not ours to share");
    }
    const std::scoped_lock lock(mutex_);
    cudaSetDevice(device_.index);
    if (!is_read_only_) {
      if (auto allowed = allow(CU_MEM_ACCESS_FLAGS_PROT_READ); !allowed) return pass_on(std::move(allowed));
    }
    int fd = -1;
    const CUresult error = driver_.export_handle(&fd, memory_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (error != CUDA_SUCCESS) return fail_driver(driver_, device_, "share memory", error);
    return UniqueFd(fd);
  }

  Result<void> create() {
    CUmemAllocationProp properties = wanted();
    if (auto measured = measure(properties); !measured) return measured;
    const CUresult error = driver_.create(&memory_, mapped_bytes_, &properties, 0);
    if (error != CUDA_SUCCESS) return fail_driver(driver_, device_, "allocate memory", error);
    has_memory_ = true;
    return map(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }

  Result<void> import(int fd) {
    const auto handle =
        reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd));  // NOLINT: so it is asked for
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
    if (auto measured = measure(wanted()); !measured) return measured;
    return map(CU_MEM_ACCESS_FLAGS_PROT_READ);
  }

 private:
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

  const Driver& driver_;
  Device device_;
  std::uint64_t size_bytes_;
  bool is_adopted_;
  std::size_t mapped_bytes_ = 0;  // a multiple of what the device allocates
  CUmemGenericAllocationHandle memory_ = 0;
  bool has_memory_ = false;
  CUdeviceptr address_ = 0;
  bool is_mapped_ = false;
  std::mutex mutex_;  // held while it is shared
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
  if (!driver) return tl::unexpected(driver.error());
  auto arena = std::make_shared<SharedArena>(**driver, device, size_bytes, false);
  if (auto created = arena->create(); !created) return pass_on(std::move(created));
  return arena;
}

Result<std::shared_ptr<Arena>> adopt_cuda_arena(const Device& device, UniqueFd descriptor,
                                                std::uint64_t size_bytes) {
  const auto driver = driver_of(device);
  if (!driver) return tl::unexpected(driver.error());
  auto arena = std::make_shared<SharedArena>(**driver, device, size_bytes, true);
  if (auto imported = arena->import(descriptor.get()); !imported) return pass_on(std::move(imported));
  return arena;
}

}  // namespace stfs::upload
