// Names of devices are exact; no name means a default device.
#include "tools/device/device.h"

#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::device;

TEST_CASE("cpu means the CPU and cuda:N that GPU, without a look at what is there", "[tools][upload]") {
  CHECK(parse_device("cpu").value() == Device{});
  const Device gpu = parse_device("cuda:17").value();
  CHECK(gpu.kind == Device::Kind::Cuda);
  CHECK(gpu.index == 17);
  CHECK(gpu.name() == "cuda:17");
  CHECK(Device{}.name() == "cpu");
}

TEST_CASE("a device that is named incompletely or wrongly is refused with those that are there",
          "[tools][upload]") {
  for (const char* text : {"cuda", "gpu", "", "CPU", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:1x",
                           "cuda:99999999999", "cuda: 1", "rocm:0", "cuda:gpu-1"}) {
    const auto device = parse_device(text);
    CAPTURE(text);
    REQUIRE_FALSE(device);
    CHECK(device.error().errno_value == EINVAL);
    CHECK(device.error().message.find("there are: cpu") != std::string::npos);
  }
  CHECK(parse_device("cuda").error().message.find("the number of the GPU is missing") != std::string::npos);
}

TEST_CASE("a UUID that no GPU has is no such device", "[tools][upload]") {
  const auto device = parse_device("cuda:GPU-00000000-0000-0000-0000-000000000000");
  REQUIRE_FALSE(device);
  CHECK(device.error().errno_value == ENODEV);
}

TEST_CASE("the list begins with the CPU and says why there is no GPU", "[tools][upload]") {
  const DeviceList list = list_devices();
  REQUIRE_FALSE(list.devices.empty());
  CHECK(list.devices.front().device == Device{});
  CHECK_FALSE(list.devices.front().description.empty());
  CHECK(list.devices.front().free_bytes.value() > 0);
  CHECK(list.devices.front().free_bytes.value() <= list.devices.front().total_bytes);
  CHECK(list.why_no_cuda.empty() == (list.devices.size() > 1));
  for (const DeviceInfo& info : list.devices) {
    if (info.device.kind == Device::Kind::Cuda)
      CHECK(parse_device("cuda:" + info.device.uuid).value() == info.device);
  }
}
