// Asks the CUDA runtime for the addresses of the driver's functions.
#include "tools/device/cuda_driver.h"

#include <fmt/format.h>

#include <atomic>

#include "core/base/mutex.h"

namespace stfs::device {
namespace {

cudaError_t entry_point(const char* name, void** function) {
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  constexpr unsigned kVersion = 12000;  // the CUDA version whose signatures are used here
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, function, kVersion, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, function, cudaEnableDefault, &found);
#endif
  if (error != cudaSuccess) return error;
  return found == cudaDriverEntryPointSuccess && *function != nullptr ? cudaSuccess
                                                                      : cudaErrorInsufficientDriver;
}

struct LoadedDriver {
  CudaDriver driver;
  cudaError_t error = cudaSuccess;  // the error of the first missing function

  LoadedDriver() {
    load("cuGetErrorName", driver.error_name);
    load("cuInit", driver.init);
    load("cuDeviceGetCount", driver.count);
    load("cuDeviceGet", driver.device);
    load("cuDeviceGetName", driver.name);
    load("cuDeviceGetUuid", driver.uuid);
    load("cuDeviceTotalMem", driver.total_memory);
    load("cuDeviceGetAttribute", driver.attribute);
    load("cuCtxGetCurrent", driver.current);
    load("cuCtxSetCurrent", driver.set_current);
    load("cuMemGetAllocationGranularity", driver.granularity);
    load("cuMemCreate", driver.create);
    load("cuMemRelease", driver.release);
    load("cuMemAddressReserve", driver.reserve);
    load("cuMemAddressFree", driver.free);
    load("cuMemMap", driver.map);
    load("cuMemUnmap", driver.unmap);
    load("cuMemSetAccess", driver.set_access);
    load("cuMemExportToShareableHandle", driver.export_handle);
    load("cuMemImportFromShareableHandle", driver.import_handle);
    load("cuMemGetAllocationPropertiesFromHandle", driver.properties);
  }

 private:
  template <class Function>
  void load(const char* name, Function& function) {
    if (error == cudaSuccess) error = entry_point(name, reinterpret_cast<void**>(&function));
  }
};

}  // namespace

std::string CudaDriver::explain(CUresult error) const {
  const char* text = nullptr;
  if (error_name(error, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown";
  return fmt::format("{} (CUDA error {})", text, static_cast<int>(error));
}

CudaDriverAnswer cuda_driver() {
  static Mutex mutex;  // one thread loads the driver
  static std::atomic<const LoadedDriver*> found = nullptr;
  if (found.load(std::memory_order_acquire) == nullptr) {
    const MutexLock lock(mutex);
    if (found.load(std::memory_order_relaxed) == nullptr) {
      LoadedDriver loaded;
      // The caller reports the failure, so it must not stay the thread's last error.
      static_cast<void>(cudaGetLastError());
      if (loaded.error != cudaSuccess) return {.driver = nullptr, .error = loaded.error};
      static LoadedDriver kept;
      kept = loaded;
      found.store(&kept, std::memory_order_release);
    }
  }
  return {.driver = &found.load(std::memory_order_relaxed)->driver, .error = cudaSuccess};
}

}  // namespace stfs::device
