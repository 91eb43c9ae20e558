// An upload does not change the caller's current device, and takes no memory of GPUs that the caller does not
// name.
#include "tools/device/cuda_scope.h"

#include "tests/support/upload_model.h"
#include "tools/device/cuda_driver.h"
#include "tools/device/cuda_error.h"

using namespace stfs;
using namespace stfs::device;
using namespace stfs::upload;

namespace {

CUcontext current_context() {
  CUcontext context = nullptr;
  REQUIRE(cuda_driver().driver != nullptr);
  REQUIRE(cuda_driver().driver->current(&context) == CUDA_SUCCESS);
  return context;
}

void upload_to_gpu(const test::UploadModel& model, std::uint64_t slot_bytes) {
  PlanRequest request = test::request_for(model.path);
  request.rules = DeviceRules::parse_device_list("cuda:0").value();
  request.dtype = Dtype::F16;
  UploadOptions options;
  options.slot_bytes = slot_bytes;
  options.verify = true;
  const auto resident = Upload::start(test::plan_for(request), options).value()->wait();
  INFO((resident ? std::string() : resident.error().message));
  REQUIRE(resident);
}

}  // namespace

TEST_CASE("a scope says why its device can't be the current one", "[tools][upload]") {
  const CudaScope scope(Device{.kind = Device::Kind::Cuda, .index = 100'000, .uuid = {}});
  CHECK(scope.error() != cudaSuccess);
}

TEST_CASE("an error that was told does not stay the thread's last error", "[tools][upload][.gpu]") {
  // No machine has a device of that number. Without a driver the runtime sets the error again at each call.
  const cudaError_t error = cudaSetDevice(100'000);
  REQUIRE(error != cudaSuccess);
  static_cast<void>(fail_cuda("cuda:100000", "open", error));
  CHECK(cudaPeekAtLastError() == cudaSuccess);
}

TEST_CASE("a conversion over more slots than the ring has arrives whole", "[tools][upload][.gpu]") {
  test::UploadModel model;
  model.write({{"a", Dtype::BF16, {5'000'000}}, {"b", Dtype::F32, {3'000'000}}});
  // Slots of 4 KiB: thousands of turns of the ring, each of which asks for an event that is not ready yet.
  for (const std::uint64_t slot_bytes : {4096U, 65536U, 2U << 20U}) upload_to_gpu(model, slot_bytes);
}

TEST_CASE("an upload and the list leave the caller's current device as it was", "[tools][upload][.gpu]") {
  test::UploadModel model;
  model.write({{"a", Dtype::BF16, {100'000}}});
  SECTION("none") {
    REQUIRE(cuda_driver().driver->set_current(nullptr) == CUDA_SUCCESS);
    static_cast<void>(list_devices());
    CHECK(current_context() == nullptr);
    upload_to_gpu(model, 4096);
    CHECK(current_context() == nullptr);
  }
  SECTION("the last GPU's") {
    int count = 0;
    REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
    REQUIRE(cudaSetDevice(count - 1) == cudaSuccess);
    const CUcontext own = current_context();
    CHECK(own != nullptr);
    upload_to_gpu(model, 4096);
    static_cast<void>(list_devices());
    CHECK(current_context() == own);
    int device = -1;
    CHECK(cudaGetDevice(&device) == cudaSuccess);
    CHECK(device == count - 1);
  }
}
