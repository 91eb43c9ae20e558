// Asks for the names, UUIDs and memory of GPUs.
#include "tools/device/cuda_devices.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <string_view>

namespace stfs::device {
namespace {

/// @param description  the name of the device. Only the name shows that the device is a part of a GPU.
std::string uuid_text(const CUuuid& uuid, std::string_view description) {
  std::string text = description.find(" MIG ") == std::string_view::npos ? "GPU-" : "MIG-";
  for (std::size_t at = 0; at < sizeof uuid.bytes; ++at) {
    if (at == 4 || at == 6 || at == 8 || at == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[at]));
  }
  return text;
}

/// Fills in the driver's answers about one GPU. @return the first missing answer, with the reason.
std::string describe(const CudaDriver& driver, DeviceInfo& info) {
  CUdevice device = 0;
  if (const CUresult error = driver.device(&device, info.device.index); error != CUDA_SUCCESS)
    return "it cannot be opened: " + driver.explain(error);
  std::array<char, 256> name{};
  if (const CUresult error = driver.name(name.data(), static_cast<int>(name.size()) - 1, device);
      error != CUDA_SUCCESS)
    return "its name cannot be read: " + driver.explain(error);
  info.description = name.data();
  CUuuid uuid{};
  if (const CUresult error = driver.uuid(&uuid, device); error != CUDA_SUCCESS)
    return "its UUID cannot be read: " + driver.explain(error);
  info.device.uuid = uuid_text(uuid, info.description);
  std::size_t total_bytes = 0;
  if (const CUresult error = driver.total_memory(&total_bytes, device); error != CUDA_SUCCESS)
    return "its memory cannot be read: " + driver.explain(error);
  info.total_bytes = total_bytes;
  return {};
}

/// The declarations of nvml.h, repeated here because that header is in an optional part of the Toolkit.
struct NvmlMemory {
  unsigned long long total_bytes;
  unsigned long long free_bytes;
  unsigned long long used_bytes;
};
using NvmlInit = int (*)();
using NvmlFind = int (*)(const char* uuid, void** device);
using NvmlAsk = int (*)(void* device, NvmlMemory* memory);

/// The library stays loaded, like the driver's library.
struct Nvml {
  NvmlFind find = nullptr;
  NvmlAsk ask = nullptr;

  Nvml() {
    void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto init = reinterpret_cast<NvmlInit>(::dlsym(library, "nvmlInit_v2"));
    if (init == nullptr || init() != 0) return;
    find = reinterpret_cast<NvmlFind>(::dlsym(library, "nvmlDeviceGetHandleByUUID"));
    ask = reinterpret_cast<NvmlAsk>(::dlsym(library, "nvmlDeviceGetMemoryInfo"));
  }
};

}  // namespace

CudaDeviceRows list_cuda_devices(const CudaDriver& driver, const FreeMemoryOf& free_memory_of) {
  CudaDeviceRows rows;
  int count = 0;
  rows.error = driver.init(0);
  if (rows.error == CUDA_SUCCESS) rows.error = driver.count(&count);
  if (rows.error == CUDA_SUCCESS && count == 0) rows.error = CUDA_ERROR_NO_DEVICE;
  if (rows.error != CUDA_SUCCESS) return rows;
  for (int index = 0; index < count; ++index) {
    DeviceInfo info;
    info.device = {.kind = Device::Kind::Cuda, .index = index, .uuid = {}};
    info.problem = describe(driver, info);
    if (info.problem.empty()) info.free_bytes = free_memory_of(info.device.uuid);
    rows.devices.push_back(std::move(info));
  }
  return rows;
}

std::optional<std::uint64_t> managed_free_memory(const std::string& uuid) {
  static const Nvml library;
  if (library.find == nullptr || library.ask == nullptr) return std::nullopt;
  void* device = nullptr;
  NvmlMemory memory{};
  if (library.find(uuid.c_str(), &device) != 0 || library.ask(device, &memory) != 0) return std::nullopt;
  return memory.free_bytes;
}

}  // namespace stfs::device
