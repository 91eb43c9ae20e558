// The list of GPUs, from a fake driver: the fields of each GPU, and the entry of a broken one.
#include "tools/device/cuda_devices.h"

#include <cstdio>
#include <cstring>

#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::device;

namespace {

/// The driver's functions are plain C functions, so their answers are global.
struct PlayedDriver {
  int gpus = 3;
  int broken = -1;  // the GPU that does not open
  int mute = -1;    // the GPU that gives no UUID
  int part = -1;    // the device that is a part of a GPU
  CUresult init = CUDA_SUCCESS;
} played;

CUresult play_init(unsigned) {
  return played.init;
}
CUresult play_count(int* count) {
  *count = played.gpus;
  return CUDA_SUCCESS;
}
CUresult play_device(CUdevice* device, int ordinal) {
  *device = 10 + ordinal;
  return ordinal == played.broken ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult play_name(char* name, int length, CUdevice device) {
  const char* kind = device - 10 == played.part ? "Played GPU MIG 1g.10gb" : "Played GPU";
  std::snprintf(name, static_cast<std::size_t>(length), "%s %d", kind, device - 10);
  return CUDA_SUCCESS;
}
CUresult play_uuid(CUuuid* uuid, CUdevice device) {
  std::memset(uuid->bytes, device, sizeof uuid->bytes);
  return device - 10 == played.mute ? CUDA_ERROR_ECC_UNCORRECTABLE : CUDA_SUCCESS;
}
CUresult play_total(std::size_t* bytes, CUdevice device) {
  *bytes = static_cast<std::size_t>(device) << 30U;
  return CUDA_SUCCESS;
}
CUresult play_error_name(CUresult error, const char** name) {
  *name = error == CUDA_ERROR_INVALID_DEVICE ? "CUDA_ERROR_INVALID_DEVICE" : "CUDA_ERROR_ECC_UNCORRECTABLE";
  return CUDA_SUCCESS;
}

/// The functions of contexts stay null: a list that creates one crashes.
CudaDriver play(PlayedDriver answers) {
  played = answers;
  CudaDriver driver;
  driver.init = play_init;
  driver.count = play_count;
  driver.device = play_device;
  driver.name = play_name;
  driver.uuid = play_uuid;
  driver.total_memory = play_total;
  driver.error_name = play_error_name;
  return driver;
}

std::optional<std::uint64_t> no_free_memory(const std::string&) {
  return std::nullopt;
}

}  // namespace

TEST_CASE("each GPU is listed by name, UUID and memory, and no context is created", "[tools][upload]") {
  std::vector<std::string> asked;
  const auto rows = list_cuda_devices(play({}), [&](const std::string& uuid) {
    asked.push_back(uuid);
    return asked.size() == 2 ? std::optional<std::uint64_t>(77) : std::nullopt;
  });
  CHECK(rows.error == CUDA_SUCCESS);
  REQUIRE(rows.devices.size() == 3);
  const DeviceInfo& second = rows.devices[1];
  CHECK(second.device.name() == "cuda:1");
  CHECK(second.device.uuid == "GPU-0b0b0b0b-0b0b-0b0b-0b0b-0b0b0b0b0b0b");
  CHECK(second.description == "Played GPU 1");
  CHECK(second.total_bytes == std::uint64_t{11} << 30U);
  CHECK(second.free_bytes == 77);
  CHECK(second.problem.empty());
  CHECK(asked[1] == second.device.uuid);
  CHECK_FALSE(rows.devices[2].free_bytes.has_value());
}

TEST_CASE("one broken GPU is listed with its reason and leaves the others alone", "[tools][upload]") {
  const auto rows = list_cuda_devices(play({.broken = 0, .mute = 2}), no_free_memory);
  CHECK(rows.error == CUDA_SUCCESS);
  REQUIRE(rows.devices.size() == 3);
  CHECK(rows.devices[0].problem == "it cannot be opened: CUDA_ERROR_INVALID_DEVICE (CUDA error 101)");
  CHECK(rows.devices[0].device.name() == "cuda:0");
  CHECK(rows.devices[1].problem.empty());
  CHECK(rows.devices[1].device.uuid.starts_with("GPU-0b"));
  CHECK(rows.devices[2].problem == "its UUID cannot be read: CUDA_ERROR_ECC_UNCORRECTABLE (CUDA error 214)");
  CHECK(rows.devices[2].description == "Played GPU 2");
  CHECK(rows.devices[2].device.uuid.empty());
}

TEST_CASE("a part of a GPU has the UUID of the part", "[tools][upload]") {
  const auto rows = list_cuda_devices(play({.gpus = 2, .part = 1}), no_free_memory);
  REQUIRE(rows.devices.size() == 2);
  CHECK(rows.devices[0].device.uuid == "GPU-0a0a0a0a-0a0a-0a0a-0a0a-0a0a0a0a0a0a");
  CHECK(rows.devices[1].device.uuid == "MIG-0b0b0b0b-0b0b-0b0b-0b0b-0b0b0b0b0b0b");
}

TEST_CASE("a driver that does not start, and one without a GPU, are errors of the whole list",
          "[tools][upload]") {
  CHECK(list_cuda_devices(play({.init = CUDA_ERROR_SYSTEM_NOT_READY}), no_free_memory).error ==
        CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(list_cuda_devices(play({.gpus = 0}), no_free_memory).error == CUDA_ERROR_NO_DEVICE);
}
