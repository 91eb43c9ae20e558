// The engine on the CPU and on failing devices: every byte is at its place, or the upload fails with a
// reason.
#include "tools/upload/upload.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/faulty_backend.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/upload_model.h"
#include "tools/device/conversion.h"

using namespace stfs;
using namespace stfs::device;
using namespace stfs::upload;
using test::plan_for;
using test::request_for;

namespace {

constexpr std::uint64_t kSlotBytes = 4096;

UploadOptions small_ring() {
  UploadOptions options;
  options.force_ring = true;
  options.slot_bytes = kSlotBytes;
  options.slots = 3;
  options.readers = 2;
  return options;
}

Result<Resident> run_upload(Plan plan, const UploadOptions& options) {
  auto started = Upload::start(std::move(plan), options);
  if (!started) return tl::unexpected(started.error());
  return (*started)->wait();
}

Resident uploaded(Plan plan, const UploadOptions& options) {
  auto resident = run_upload(std::move(plan), options);
  INFO((resident ? std::string() : resident.error().message));
  REQUIRE(resident);
  return std::move(*resident);
}

void check_bytes(const Resident& resident, const test::UploadModel& model) {
  for (const PlannedTensor& tensor : resident.plan.tensors) {
    if (test::bytes_on_device(resident, tensor) != model.tensors.at(tensor.name))
      FAIL(tensor.name << " differs");
  }
}

/// A model, a device that fails on demand in place of a GPU, and the options for both.
struct FaultyUpload {
  test::UploadModel model;
  std::shared_ptr<test::DeviceFaults> faults = std::make_shared<test::DeviceFaults>();
  UploadOptions options = small_ring();
  bool is_host = false;

  explicit FaultyUpload() {
    model.write_mixed(kSlotBytes);
    options.force_ring = false;
    options.open_backend = [this](const Device& device) -> Result<std::shared_ptr<Backend>> {
      return std::make_shared<test::FaultyBackend>(device, faults, is_host);
    };
  }

  [[nodiscard]] Plan plan(const std::string& devices = "cuda:0") const {
    PlanRequest request = request_for(model.path);
    request.rules = DeviceRules::parse_device_list(devices).value();
    return plan_for(request);
  }
  Error refused(const std::string& devices = "cuda:0") {
    const auto resident = run_upload(plan(devices), options);
    REQUIRE_FALSE(resident);
    CHECK(faults->arenas == 0);
    return resident.error();
  }
};

std::size_t count_descriptors() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    count += entry.path().empty() ? 0U : 1U;
  return count;
}

}  // namespace

TEST_CASE("every byte arrives, through rings of any size and without one", "[tools][upload]") {
  test::UploadModel model;
  model.write_mixed(kSlotBytes);
  for (const std::uint64_t slot_bytes : {256U, 512U, 4096U, 65536U}) {
    for (const unsigned slots : {1U, 2U, 16U}) {
      for (const unsigned readers : {1U, 3U, 8U}) {
        for (const bool force_ring : {false, true}) {
          UploadOptions options;
          options.slot_bytes = slot_bytes;
          options.slots = slots;
          options.readers = readers;
          options.force_ring = force_ring;
          options.verify = slots == 2;
          CAPTURE(slot_bytes, slots, readers, force_ring);
          const Resident resident = uploaded(plan_for(request_for(model.path)), options);
          check_bytes(resident, model);
          CHECK(resident.report.read_bytes == resident.plan.read_bytes());
          CHECK(resident.report.verified_bytes == (options.verify ? resident.report.read_bytes : 0));
        }
      }
    }
  }
}

TEST_CASE("what lies between tensors is zero", "[tools][upload]") {
  test::UploadModel model;
  model.write_mixed(kSlotBytes);
  for (const bool force_ring : {false, true}) {
    UploadOptions options = small_ring();
    options.force_ring = force_ring;
    const Resident resident = uploaded(plan_for(request_for(model.path)), options);
    const auto bytes = resident.arenas[0]->host_bytes();
    std::uint64_t end = 0;
    for (const PlannedTensor& tensor : resident.plan.tensors) {
      for (; end < tensor.place.offset; ++end) REQUIRE(bytes[end] == std::byte{0});
      end = tensor.place.end();
    }
  }
}

TEST_CASE("slices and shards arrive packed", "[tools][upload]") {
  test::UploadModel model;
  model.write({{"m", Dtype::U8, {300, 70}}, {"n", Dtype::U8, {64, 64}}});
  for (const bool force_ring : {false, true}) {
    UploadOptions options = small_ring();
    options.slot_bytes = 1024;
    options.force_ring = force_ring;
    options.verify = true;
    const Resident resident =
        uploaded(plan_for(request_for(model.path, {"m[::-2, 3:60:3]", "n[10:20]"})), options);
    std::string wanted;
    for (int row = 299; row >= 0; row -= 2) {
      for (int column = 3; column < 60; column += 3) {
        wanted += model.tensors.at("m")[static_cast<std::size_t>(row * 70 + column)];
      }
    }
    CHECK(test::bytes_on_device(resident, resident.plan.tensors[0]) == wanted);
    CHECK(test::bytes_on_device(resident, resident.plan.tensors[1]) ==
          model.tensors.at("n").substr(640, 640));
    CHECK(resident.report.read_bytes == wanted.size() + 640);
  }
}

TEST_CASE("floating tensors arrive converted, and what does not fit is counted", "[tools][upload]") {
  test::UploadModel model;
  model.write({{"f", Dtype::F32, {3, 5000}},
               {"b", Dtype::BF16, {777}},
               {"i", Dtype::I32, {100}},
               {"e", Dtype::BF16, {9}}});
  std::uint64_t overflows = 0;
  for (const bool force_ring : {false, true}) {
    PlanRequest request = request_for(model.path);
    request.dtype = Dtype::F16;
    UploadOptions options = small_ring();
    options.force_ring = force_ring;
    options.verify = true;
    const Resident resident = uploaded(plan_for(request), options);
    std::uint64_t expected_overflows = 0;
    for (const PlannedTensor& tensor : resident.plan.tensors) {
      const std::string& source = model.tensors.at(tensor.name);
      std::string wanted = source;
      if (tensor.name != "i") {
        wanted.resize(tensor.place.size_bytes);
        expected_overflows += convert_elements(tensor.source_dtype, std::as_bytes(std::span(source)),
                                               Dtype::F16, std::as_writable_bytes(std::span(wanted)));
      }
      CHECK((test::bytes_on_device(resident, tensor) == wanted));
    }
    CHECK(expected_overflows > 0);
    CHECK(resident.report.overflows == expected_overflows);
    overflows += resident.report.overflows;
  }
}

TEST_CASE("replicas are read once and arrive on each device", "[tools][upload]") {
  FaultyUpload faulty;
  test::FaultyStorage storage;
  PlanRequest request = request_for(faulty.model.path);
  request.rules =
      DeviceRules::read_file(faulty.model.directory.write("rules", "t1* cuda:0, cpu, cuda:4\n* cpu, cuda:0"))
          .value();
  const Resident resident = uploaded(plan_for(request), faulty.options);
  REQUIRE(resident.arenas.size() == 3);
  check_bytes(resident, faulty.model);
  std::uint64_t all = 0;
  for (const auto& [name, bytes] : faulty.model.tensors) all += bytes.size();
  CHECK(resident.report.read_bytes == all);
}

TEST_CASE("a model without a byte is uploaded too", "[tools][upload]") {
  test::UploadModel model;
  model.write({{"empty", Dtype::F32, {0, 4}}});
  const Resident resident = uploaded(plan_for(request_for(model.path)), {});
  CHECK(resident.plan.tensors[0].place.size_bytes == 0);
  model.write({});
  CHECK(uploaded(plan_for(request_for(model.path)), small_ring()).plan.tensors.empty());
}

TEST_CASE("what does not fit is said before a byte moves, with both figures", "[tools][upload]") {
  FaultyUpload faulty;
  faulty.faults->free_bytes = 5000;
  const Error error = faulty.refused();
  CHECK(error.errno_value == ENOMEM);
  CHECK(error.message.starts_with("cuda:0: "));
  CHECK(error.message.find("are needed and 4.9 KiB (5000 bytes) are free") != std::string::npos);
  CHECK(faulty.faults->copies == 0);
}

TEST_CASE("a device that fails at any copy or wait fails the upload and keeps nothing", "[tools][upload]") {
  FaultyUpload faulty;
  uploaded(faulty.plan(), faulty.options);
  const int copies = faulty.faults->copies;
  REQUIRE(copies > 5);
  for (int at = 0; at < copies; ++at) {
    faulty.faults->copies_until_failure = at;
    CHECK(faulty.refused("cuda:0,cuda:1").message == "device: copy: broken");
    faulty.faults->copies_until_failure = -1;
    faulty.faults->marks_until_failure = at;
    CHECK(faulty.refused().message == "device: wait: broken");
    faulty.faults->marks_until_failure = -1;
  }
  faulty.faults->fails_queues = true;
  CHECK(faulty.refused().message == "device: open a stream: broken");
  faulty.faults->fails_queues = false;
  faulty.faults->fails_staging = true;
  CHECK(faulty.refused().errno_value == ENOMEM);
}

TEST_CASE("a GPU verifies in one queue, and the CPU in one for each reader with a tensor",
          "[tools][upload]") {
  const bool is_host = GENERATE(false, true);
  const bool has_one_tensor = GENERATE(false, true);
  int queues = 0;
  for (const bool verifies : {true, false}) {
    FaultyUpload faulty;
    if (has_one_tensor) faulty.model.write({{"one", Dtype::U8, {100}}});
    faulty.is_host = is_host;
    faulty.options.readers = 3;
    faulty.options.verify = verifies;
    REQUIRE(run_upload(faulty.plan(), faulty.options));
    queues = verifies ? faulty.faults->queues.load() : queues - faulty.faults->queues;
  }
  CHECK(queues == (is_host && !has_one_tensor ? 3 : 1));
}

TEST_CASE("a byte that arrives changed is found by verification", "[tools][upload]") {
  FaultyUpload faulty;
  faulty.options.verify = true;
  faulty.faults->copies_until_flip = 3;
  const Error error = faulty.refused();
  CHECK(error.errno_value == EBADMSG);
  CHECK(error.message.find("the bytes on cuda:0 differ from the archive") != std::string::npos);
  faulty.faults->copies_until_flip = -1;
  CHECK(run_upload(faulty.plan(), faulty.options));
}

TEST_CASE("a read that fails anywhere, and a file that is cut, fail the upload", "[tools][upload]") {
  test::UploadModel model;
  model.write_mixed(kSlotBytes);
  test::FaultyStorage storage;
  PlanRequest request = request_for(model.path);
  request.storage = &storage;
  for (const bool force_ring : {false, true}) {
    for (unsigned nth = 1; nth < 12; ++nth) {
      UploadOptions options = small_ring();
      options.force_ring = force_ring;
      Plan plan = plan_for(request);
      storage.plan().fail_call(test::FileCall::Read, nth, EIO);
      const auto resident = run_upload(std::move(plan), options);
      storage.plan().fail_call(0, 0);
      CAPTURE(force_ring, nth);
      REQUIRE_FALSE(resident);
      CHECK(resident.error().errno_value == EIO);
    }
  }
  Plan plan = plan_for(request_for(model.path));
  std::filesystem::resize_file(model.path, std::filesystem::file_size(model.path) - 5000);
  CHECK(run_upload(std::move(plan), small_ring()).error().errno_value == ESTALE);
}

TEST_CASE("an archive that changes while it is read is told as such, and nothing is kept",
          "[tools][upload]") {
  FaultyUpload faulty;
  faulty.faults->is_stalled = true;
  auto started = Upload::start(faulty.plan(), faulty.options);
  REQUIRE(started);
  while (faulty.faults->copies == 0) std::this_thread::yield();
  std::fstream(faulty.model.path, std::ios::in | std::ios::out).seekp(-1, std::ios::end).put('!');
  faulty.faults->is_stalled = false;
  const auto resident = (*started)->wait();
  REQUIRE_FALSE(resident);
  CHECK(resident.error().errno_value == ESTALE);
  started->reset();
  CHECK(faulty.faults->arenas == 0);
}

TEST_CASE("an upload can be cancelled at any time, and leaves neither memory nor descriptors",
          "[tools][upload]") {
  FaultyUpload faulty;
  const auto cancel_after = [&](int copies) {
    auto started = Upload::start(faulty.plan("cuda:0,cuda:1"), faulty.options);
    REQUIRE(started);
    while (faulty.faults->copies < copies && !(*started)->is_done()) std::this_thread::yield();
    const bool was_done = (*started)->is_done();
    (*started)->cancel();
    const auto resident = (*started)->wait();
    CHECK(((*started)->is_done() && (resident || resident.error().errno_value == ECANCELED)));
    CHECK((was_done || !resident ||
           (*started)->progress().done_bytes() == (*started)->progress().total_bytes()));
  };
  cancel_after(0);
  const std::size_t descriptors = count_descriptors();
  for (int round = 0; round < 30; ++round) {
    faulty.faults->copies = 0;
    cancel_after(round);
    CHECK(faulty.faults->arenas == 0);
  }
  faulty.faults->is_stalled = true;
  faulty.faults->copies = 0;
  cancel_after(1);  // all threads wait for a device that does nothing
  faulty.faults->is_stalled = false;
  CHECK(Upload::start(faulty.plan(), faulty.options).has_value());  // its end cancels
  CHECK(faulty.faults->arenas == 0);
  CHECK(count_descriptors() == descriptors);
}

TEST_CASE("a device that is slow holds the readers back: the ring is all the memory there is",
          "[tools][upload]") {
  FaultyUpload faulty;
  Work work;
  faulty.options.work = &work;
  faulty.faults->is_stalled = true;
  auto started = Upload::start(faulty.plan(), faulty.options);
  REQUIRE(started);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(faulty.faults->copies <= static_cast<int>(faulty.options.slots));
  CHECK((*started)->progress().done_bytes() == 0);
  CHECK_FALSE((*started)->is_done());
  faulty.faults->is_stalled = false;
  const auto resident = (*started)->wait();
  REQUIRE(resident);
  check_bytes(*resident, faulty.model);
  CHECK((*started)->progress().done_bytes() == (*started)->progress().total_bytes());
  CHECK(work.done_bytes() == resident->plan.read_bytes());
  CHECK(work.total_bytes() == work.done_bytes());
}

TEST_CASE("the ring is twice as large where the disk has to be waited for", "[tools][upload]") {
  FaultyUpload faulty;
  faulty.options.slots = 0;
  REQUIRE(run_upload(faulty.plan(), faulty.options));  // written just now, so it is in the page cache
  CHECK(faulty.faults->staging_bytes == 16 * kSlotBytes);

  const UniqueFd file(::open(faulty.model.path.c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(::fsync(file.get()) == 0);
  REQUIRE(::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED) == 0);
  const auto resident = run_upload(faulty.plan(), faulty.options);
  REQUIRE(resident);
  // A file system in memory never drops its pages.
  const bool is_cold = resident->report.cached_bytes < resident->report.read_bytes / 10 * 9;
  CHECK(faulty.faults->staging_bytes == (is_cold ? 32U : 16U) * kSlotBytes);
  check_bytes(*resident, faulty.model);
}

TEST_CASE("small tensors travel together: as many copies as slots of bytes", "[tools][upload]") {
  FaultyUpload faulty;
  std::vector<TensorSpec> specs;
  for (int at = 0; at < 1000; ++at) specs.push_back({"s" + std::to_string(at), Dtype::U8, {64}});
  faulty.model.write(specs);
  faulty.options.slot_bytes = 64 << 10;
  const Resident resident = uploaded(faulty.plan(), faulty.options);
  check_bytes(resident, faulty.model);
  CHECK(faulty.faults->copies == 4);  // 1000 * 256 bytes in slots of 64 KiB
}

TEST_CASE("a shareable upload is adopted by its descriptor", "[tools][upload]") {
  test::UploadModel model;
  model.write_mixed(kSlotBytes);
  UploadOptions options;
  options.is_shareable = true;
  Resident resident = uploaded(plan_for(request_for(model.path)), options);
  auto descriptor = resident.arenas[0]->share();
  REQUIRE(descriptor);
  check_bytes(resident, model);
  const auto backend = Backend::open(Device{}).value();
  auto adopted = backend->adopt(std::move(*descriptor), resident.arenas[0]->size_bytes());
  REQUIRE(adopted);
  resident.arenas = {*adopted};
  check_bytes(resident, model);
}
