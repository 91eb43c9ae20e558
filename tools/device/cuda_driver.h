// The functions of the CUDA driver that this program calls directly. The driver's library is never linked:
// each function is looked up at run time, so that this program also starts without a driver.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <string>

#include "core/base/error.h"

namespace stfs::device {

/// Tests fill in other functions.
struct CudaDriver {
  PFN_cuGetErrorName_v6000 error_name = nullptr;
  // Devices. None of these functions creates a context.
  PFN_cuInit_v2000 init = nullptr;
  PFN_cuDeviceGetCount_v2000 count = nullptr;
  PFN_cuDeviceGet_v2000 device = nullptr;
  PFN_cuDeviceGetName_v2000 name = nullptr;
  PFN_cuDeviceGetUuid_v9020 uuid = nullptr;
  PFN_cuDeviceTotalMem_v3020 total_memory = nullptr;
  PFN_cuDeviceGetAttribute_v2000 attribute = nullptr;
  // The calling thread's context.
  PFN_cuCtxGetCurrent_v4000 current = nullptr;
  PFN_cuCtxSetCurrent_v4000 set_current = nullptr;
  // Virtual memory.
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

  /// Returns, for example, "CUDA_ERROR_NOT_SUPPORTED (CUDA error 801)".
  [[nodiscard]] std::string explain(CUresult error) const;
};

/// Returns the driver of this machine. Each call looks for the driver until one has found it: a container may
/// get its GPU, or the kernel its module, after the first call. The driver stays for the lifetime of the
/// process. Any thread may call.
/// @return the runtime's error if there is no driver, or if it lacks one of the functions.
struct CudaDriverAnswer {
  const CudaDriver* driver = nullptr;  // null with an error
  cudaError_t error = cudaSuccess;
};
CudaDriverAnswer cuda_driver();

}  // namespace stfs::device
