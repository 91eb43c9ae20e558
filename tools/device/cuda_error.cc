// The sentences contain the numbers of cudaError_t, because users search the web for these numbers.
#include "tools/device/cuda_error.h"

#include <fmt/format.h>
#include <unistd.h>

namespace stfs::device {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string explain_driver() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return "no NVIDIA driver is installed here (CUDA error 35): its libcuda.so.1 was not found";
  }
  return fmt::format(
      "the NVIDIA driver is too old (CUDA error 35): it supports CUDA {}, this program needs {}",
      version_text(driver), version_text(CUDART_VERSION));
}

/// Checks the GPU's device file: the driver also reports "no device" if it may not open these files.
std::string explain_no_device() {
  constexpr const char* kFile = "/dev/nvidia0";
  if (::access(kFile, F_OK) == 0 && ::access(kFile, R_OK | W_OK) != 0) {
    return fmt::format("no access to the GPU (CUDA error 100): this user may not open {}", kFile);
  }
  return "the NVIDIA driver finds no GPU (CUDA error 100): there is none, or CUDA_VISIBLE_DEVICES hides it";
}

}  // namespace

std::string explain_cuda(cudaError_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver: return explain_driver();
    case cudaErrorNoDevice: return explain_no_device();
    case cudaErrorStubLibrary:
      return "the Toolkit's stub was loaded in place of the driver (CUDA error 34): remove its directory "
             "\"stubs\" from the library path";
    case cudaErrorDevicesUnavailable:
      return "the GPU is taken (CUDA error 46): another process has it for itself, or its compute mode "
             "forbids it";
    case cudaErrorSystemNotReady:
      return "the GPUs are not ready (CUDA error 802): the fabric manager, nvidia-fabricmanager, has to run";
    case cudaErrorSystemDriverMismatch:
      return "the NVIDIA driver's module and its library are of two versions (CUDA error 803): restart the "
             "machine after the driver's update";
    case cudaErrorCompatNotSupportedOnDevice:
      return "the driver's library is that of a compatibility package, which this GPU does not take (CUDA "
             "error "
             "804): take \"compat\" out of the library path, or update the driver";
    default: return fmt::format("{} (CUDA error {})", cudaGetErrorString(error), static_cast<int>(error));
  }
}

tl::unexpected<Error> fail_cuda(std::string_view device, std::string_view what, cudaError_t error) {
  const std::string message = fmt::format("{}: {}: {}", device, what, explain_cuda(error));
  static_cast<void>(cudaGetLastError());
  switch (error) {
    case cudaErrorMemoryAllocation: return fail(ErrorCode::OutOfMemory, ENOMEM, message);
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorStubLibrary:
    case cudaErrorDevicesUnavailable:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorInvalidDevice: return fail(ErrorCode::NotFound, ENODEV, message);
    // Each later call of this process returns the same error.
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
      return fail(ErrorCode::System, ENOTRECOVERABLE,
                  message + "; this process can't use the GPU any more: start it again");
    default: return fail(ErrorCode::System, EIO, message);
  }
}

}  // namespace stfs::device
