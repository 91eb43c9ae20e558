// The comparison of tensors on devices with their archives finds each difference, on the CPU and by digests.
#include "tools/upload/difference.h"

#include <memory>

#include "tests/support/faulty_backend.h"
#include "tests/support/upload_model.h"

using namespace stfs;
using namespace stfs::device;
using namespace stfs::upload;

namespace {

/// An upload of a model to two devices, seen as the CPU or as devices that compute digests.
struct Compared {
  explicit Compared(bool is_host, std::optional<Dtype> dtype = {}) {
    model.write({{"a", Dtype::F32, {700'000}},
                 {"b", Dtype::U8, {5}},
                 {"c", Dtype::F32, {0}},
                 {"d", Dtype::F32, {300}}});
    options.open_backend = [this, is_host](const Device& device) -> Result<std::shared_ptr<Backend>> {
      return std::make_shared<test::FaultyBackend>(device, faults, is_host);
    };
    PlanRequest request = test::request_for(model.path);
    request.rules = DeviceRules::parse_device_list("cuda:0,cuda:1").value();
    request.dtype = dtype;
    UploadOptions upload;
    upload.open_backend = options.open_backend;
    auto started = Upload::start(test::plan_for(request), upload);
    REQUIRE(started);
    auto done = (*started)->wait();
    REQUIRE(done);
    resident = std::move(*done);
    for (const PlannedTensor& tensor : resident.plan.tensors)
      arenas.push_back(resident.arenas[tensor.device]);
  }

  Result<std::vector<bool>> find() { return find_different(resident.plan, arenas, options, *work); }
  /// Changes a byte of a tensor on its device.
  void flip(std::size_t tensor, std::uint64_t offset) {
    const PlannedTensor& it = resident.plan.tensors[tensor];
    resident.arenas[it.device]->host_bytes()[it.place.offset + offset] ^= std::byte{1};
  }

  test::UploadModel model;
  std::shared_ptr<test::DeviceFaults> faults = std::make_shared<test::DeviceFaults>();
  DifferenceOptions options;
  Resident resident;
  std::vector<std::shared_ptr<Arena>> arenas;
  std::optional<Work> work{std::in_place};
};

}  // namespace

TEST_CASE("a difference is found in the tensor and on the device that has it", "[tools][upload]") {
  const bool is_host = GENERATE(true, false);
  const std::optional<Dtype> dtype = GENERATE(std::optional<Dtype>(), std::optional<Dtype>(Dtype::BF16));
  Compared compared(is_host, dtype);
  const std::size_t count = compared.resident.plan.tensors.size();
  REQUIRE(count == 8);  // each on two devices
  CHECK(compared.find().value() == std::vector<bool>(count, false));
  CHECK(compared.work->done_bytes() == compared.resident.plan.read_bytes());
  CHECK(compared.work->total_bytes() == compared.work->done_bytes());
  // The first byte, the last byte, one in the middle of a large tensor.
  const std::uint64_t last = compared.resident.plan.tensors[0].place.size_bytes - 1;
  for (const auto& [tensor, offset] :
       {std::pair<std::size_t, std::uint64_t>{0, 0}, {1, last}, {0, last / 2 + 1}, {2, 4}, {7, 13}}) {
    compared.flip(tensor, offset);
    std::vector<bool> due(count, false);
    due[tensor] = true;
    CHECK(compared.find().value() == due);
    compared.flip(tensor, offset);
  }
}

TEST_CASE("a failure of a device or of a read ends the comparison", "[tools][upload]") {
  Compared compared(false);
  compared.find().value();
  const int digests = compared.faults->digests;
  for (int at = 0; at < digests; ++at) {
    compared.faults->digests_until_failure = at;
    CHECK(compared.find().error().errno_value == EIO);
    compared.faults->digests_until_failure = -1;
  }
  compared.faults->fails_queues = true;
  CHECK(compared.find().error().errno_value == EIO);
  compared.faults->fails_queues = false;
  compared.faults->marks_until_failure = 0;
  CHECK(compared.find().error().errno_value == EIO);
  compared.work->stop();
  CHECK(compared.find().error().errno_value == ECANCELED);
  compared.work.emplace();
  std::filesystem::resize_file(compared.model.path, 400);
  CHECK_FALSE(compared.find());
}
