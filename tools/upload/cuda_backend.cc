// NVIDIA GPUs, through the CUDA runtime. It is linked statically and needs no driver to start.
#include "tools/upload/cuda_backend.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "tools/quantity.h"
#include "tools/upload/cuda_arena.h"
#include "tools/upload/cuda_error.h"
#include "tools/upload/cuda_queue.h"

namespace stfs::upload {
namespace {

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (std::size_t at = 0; at < sizeof uuid.bytes; ++at) {
    if (at == 4 || at == 6 || at == 8 || at == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[at]));
  }
  return text;
}

/// Page-locked, and the same for all GPUs.
class CudaStaging final : public Staging {
 public:
  explicit CudaStaging(std::span<std::byte> memory) : memory_(memory) {}
  CudaStaging(const CudaStaging&) = delete;
  CudaStaging& operator=(const CudaStaging&) = delete;
  ~CudaStaging() override { cudaFreeHost(memory_.data()); }
  std::span<std::byte> bytes() override { return memory_; }

 private:
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
    cudaError_t error = cudaSetDevice(device_.index);
    if (error == cudaSuccess) error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error != cudaSuccess) return fail_cuda(device_.name(), "ask for its memory", error);
    return MemoryInfo{.free_bytes = free_bytes, .total_bytes = total_bytes};
  }

  Result<std::shared_ptr<Arena>> allocate(std::uint64_t size_bytes, bool is_shareable) override {
    const auto now = memory();
    if (!now) return tl::unexpected(now.error());
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
    cudaError_t error = cudaSetDevice(device_.index);
    if (error == cudaSuccess) {
      error = cudaHostAlloc(&memory, static_cast<std::size_t>(size_bytes), cudaHostAllocPortable);
    }
    if (error != cudaSuccess) {
      return fail_cuda(device_.name(), fmt::format("page-lock {}", tools::human_size(size_bytes)), error);
    }
    return std::make_unique<CudaStaging>(
        std::span(static_cast<std::byte*>(memory), static_cast<std::size_t>(size_bytes)));
  }

  Result<std::unique_ptr<Queue>> open_queue() override {
    if (const cudaError_t error = cudaSetDevice(device_.index); error != cudaSuccess) {
      return fail_cuda(device_.name(), "open a stream", error);
    }
    return open_cuda_queue(device_);
  }

  Result<std::shared_ptr<Arena>> adopt(UniqueFd descriptor, std::uint64_t size_bytes) override {
    if (const cudaError_t error = cudaSetDevice(device_.index); error != cudaSuccess) {
      return fail_cuda(device_.name(), "take over memory", error);
    }
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
  return fail(ErrorCode::NotFound, ENODEV, explain_cuda(error));
}

}  // namespace

Result<std::vector<DeviceInfo>> list_cuda_devices() {
  const auto count = count_devices();
  if (!count) return tl::unexpected(count.error());
  std::vector<DeviceInfo> list;
  for (int index = 0; index < *count; ++index) {
    DeviceInfo info{.device = {.kind = Device::Kind::Cuda, .index = index, .uuid = {}}, .description = {}};
    cudaDeviceProp properties{};
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess) {
      return fail_cuda(info.device.name(), "ask for its properties", error);
    }
    info.device.uuid = uuid_text(properties.uuid);
    info.description = properties.name;
    info.total_bytes = properties.totalGlobalMem;
    // A GPU that is taken is there all the same, with nothing free.
    CudaBackend backend(info.device);
    if (const auto memory = backend.memory()) {
      info.free_bytes = memory->free_bytes;
    } else {
      info.description += ": " + memory.error().message;
    }
    list.push_back(std::move(info));
  }
  return list;
}

Result<std::shared_ptr<Backend>> open_cuda_backend(const Device& device) {
  const auto count = count_devices();
  if (!count) return tl::unexpected(Error(count.error()).within(device.name()));
  if (device.index >= *count) {
    return fail(ErrorCode::NotFound, ENODEV,
                fmt::format("{}: no such GPU: there {} {}, from cuda:0 on", device.name(),
                            *count == 1 ? "is" : "are", *count));
  }
  // The primary context is made here: what is wrong with the device shows now.
  cudaError_t error = cudaSetDevice(device.index);
  if (error == cudaSuccess) error = cudaFree(nullptr);
  if (error != cudaSuccess) return fail_cuda(device.name(), "open", error);
  return std::make_shared<CudaBackend>(device);
}

}  // namespace stfs::upload
