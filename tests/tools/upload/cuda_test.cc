// Tests that need a GPU: copies, kernels, shared memory. Hidden from a usual run; tests/gpu/run runs them.
#include <cstring>
#include <vector>

#include "tests/support/upload_model.h"
#include "tools/device/conversion.h"
#include "tools/device/digest.h"

using namespace stfs;
using namespace stfs::device;
using namespace stfs::upload;
using test::plan_for;
using test::request_for;

namespace {

std::shared_ptr<Backend> gpu() {
  auto backend = Backend::open(parse_device("cuda:0").value());
  INFO((backend ? std::string() : backend.error().message));
  REQUIRE(backend);
  return *backend;
}

/// Waits for all that a queue was given.
void finish(Queue& queue) {
  const auto mark = queue.mark();
  REQUIRE(mark);
  REQUIRE(queue.wait_for(*mark));
}

std::shared_ptr<Arena> arena_with(Backend& backend, const std::string& bytes, bool is_shareable) {
  auto arena = backend.allocate(bytes.size(), is_shareable);
  REQUIRE(arena);
  auto staging = backend.allocate_staging(bytes.size() + 1).value();
  std::memcpy(staging->bytes().data(), bytes.data(), bytes.size());
  auto queue = backend.open_queue().value();
  REQUIRE(queue->copy(staging->bytes().first(bytes.size()), **arena, 0));
  finish(*queue);
  return *arena;
}

std::uint64_t digest_on(Backend& backend, Arena& arena, ByteRange range) {
  std::uint64_t digest = 0;
  auto queue = backend.open_queue().value();
  REQUIRE(queue->digest(arena, range, &digest));
  finish(*queue);
  return digest;
}

std::uint64_t digest_of_text(const std::string& text) {
  return digest_of(std::as_bytes(std::span(text)));
}

}  // namespace

TEST_CASE("the digest of a GPU is that of the CPU, for every kind of length", "[tools][upload][.gpu]") {
  const auto backend = gpu();
  for (const std::uint64_t size_bytes :
       {1U, 7U, 8U, 2047U, 2049U, 65535U, 65536U, 65537U, 1'000'003U, 64U << 20U}) {
    const std::string bytes = test::pattern_bytes(size_bytes, size_bytes);
    CAPTURE(size_bytes);
    const auto arena = arena_with(*backend, bytes, false);
    CHECK(digest_on(*backend, *arena, {0, size_bytes}) == digest_of_text(bytes));
  }
  // More than are under way at a time.
  const std::string bytes = test::pattern_bytes(1 << 20, 5);
  const auto arena = arena_with(*backend, bytes, false);
  std::vector<std::uint64_t> digests(10'000);
  auto queue = backend->open_queue().value();
  for (std::size_t at = 0; at < digests.size(); ++at)
    REQUIRE(queue->digest(*arena, {at * 64, 640}, &digests[at]));
  finish(*queue);
  for (std::size_t at = 0; at < digests.size(); ++at)
    REQUIRE(digests[at] == digest_of_text(bytes.substr(at * 64, 640)));
}

TEST_CASE("a GPU converts every value as the CPU does, and counts as much", "[tools][upload][.gpu]") {
  const auto backend = gpu();
  for (const Dtype from : all_dtypes()) {
    if (!float_format_of(from)) continue;
    const std::uint64_t from_bytes = bits_of(from) / 8;
    std::string source = test::pattern_bytes(65536 * from_bytes, 3);
    for (std::size_t at = 0; from_bytes == 2 && at < 65536; ++at) {
      const auto value = static_cast<std::uint16_t>(at);
      std::memcpy(source.data() + 2 * at, &value, sizeof value);
    }
    const auto arena = arena_with(*backend, source, false);
    for (const Dtype to : all_dtypes()) {
      if (!is_conversion_target(to) || to == from) continue;
      CAPTURE(name_of(from), name_of(to));
      std::string wanted(65536 * bits_of(to) / 8, '\0');
      const std::uint64_t overflows = convert_elements(from, std::as_bytes(std::span(source)), to,
                                                       std::as_writable_bytes(std::span(wanted)));
      const auto converted = backend->allocate(wanted.size(), false).value();
      auto queue = backend->open_queue().value();
      REQUIRE(queue->convert(*arena, {0, source.size()}, from, *converted, 0, to));
      finish(*queue);
      CHECK(queue->overflows().value() == overflows);
      CHECK(digest_on(*backend, *converted, {0, wanted.size()}) == digest_of_text(wanted));
    }
  }
}

TEST_CASE("memory of a GPU is shared by a descriptor, read-only", "[tools][upload][.gpu]") {
  const auto backend = gpu();
  const std::string bytes = test::pattern_bytes(5'000'000, 9);
  const auto arena = arena_with(*backend, bytes, true);
  auto descriptor = arena->share();
  REQUIRE(descriptor);
  CHECK(arena->is_read_only());
  CHECK(digest_on(*backend, *arena, {0, bytes.size()}) == digest_of_text(bytes));
  auto adopted = backend->adopt(std::move(*descriptor), bytes.size());
  REQUIRE(adopted);
  CHECK((*adopted)->is_read_only());
  CHECK(digest_on(*backend, **adopted, {0, bytes.size()}) == digest_of_text(bytes));
  CHECK((*adopted)->share().error().errno_value == ENOTSUP);
  CHECK(arena_with(*backend, bytes, false)->share().error().errno_value == ENOTSUP);
}

TEST_CASE("whole models arrive on a GPU, replicas, slices and conversions included",
          "[tools][upload][.gpu]") {
  test::UploadModel model;
  model.write_mixed(4096);
  for (const char* devices : {"cuda:0", "cpu,cuda:0"}) {
    for (const std::uint64_t slot_bytes : {4096U, 2U << 20U}) {
      PlanRequest request = request_for(model.path);
      request.rules = DeviceRules::parse_device_list(devices).value();
      UploadOptions options;
      options.slot_bytes = slot_bytes;
      options.verify = true;
      auto started = Upload::start(plan_for(request), options);
      REQUIRE(started);
      const auto resident = (*started)->wait();
      REQUIRE(resident);
      CHECK(resident->report.verified_bytes >= resident->report.read_bytes);
    }
  }
  model.write({{"f", Dtype::F32, {3, 5000}}, {"b", Dtype::BF16, {777}}});
  PlanRequest request = request_for(model.path, {"f[:, ::3]", "b"});
  request.rules = DeviceRules::parse_device_list("cuda:0").value();
  request.dtype = Dtype::F8_E4M3;
  UploadOptions options;
  options.verify = true;
  CHECK(Upload::start(plan_for(request), options).value()->wait());
}

TEST_CASE("a GPU says what it can't hold, and which of them there are", "[tools][upload][.gpu]") {
  const auto arena = gpu()->allocate(std::uint64_t{1} << 50U, false);
  REQUIRE_FALSE(arena);
  CHECK(arena.error().errno_value == ENOMEM);
  const auto backend = Backend::open(parse_device("cuda:900").value());
  REQUIRE_FALSE(backend);
  CHECK(backend.error().message.find("no such GPU: there ") != std::string::npos);
}
