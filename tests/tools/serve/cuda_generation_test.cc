// Generations on a GPU: unchanged tensors share the memory of the generation before, also in the processes
// that hold leases. Hidden from a usual run; tests/gpu/run runs it.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "tests/support/upload_model.h"
#include "tests/tools/serve/leased_server.h"
#include "tools/device/digest.h"
#include "tools/serve/generation_maker.h"

using namespace stfs;
using namespace stfs::device;
using namespace stfs::serve;

namespace {

Generation next_on_gpu(GenerationMaker& maker, const Generation* before) {
  Work work;
  for (;;) {
    auto made = maker.make(work, before);
    if (made) return std::move(*made);
    INFO(made.error().message);
    REQUIRE(made.error().errno_value == EAGAIN);  // the file was just changed
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Compares the bytes of a tensor in the memory of its device with these.
bool holds(Arena& arena, ByteRange place, const std::string& bytes) {
  std::uint64_t digest = 0;
  auto queue = Backend::open(arena.device()).value()->open_queue().value();
  REQUIRE(queue->digest(arena, place, &digest));
  const auto mark = queue->mark();
  REQUIRE(mark);
  REQUIRE(queue->wait_for(*mark));
  return digest == digest_of(std::as_bytes(std::span(bytes)));
}

}  // namespace

TEST_CASE("a generation on a GPU shares the memory of what has not changed, and so does a renewed lease",
          "[tools][serve][.gpu]") {
  test::UploadModel model;
  model.write({{"a", Dtype::U8, {3'000'000}}, {"b", Dtype::F32, {500'000}}, {"c", Dtype::U8, {777}}});
  upload::PlanRequest request = test::request_for(model.path);
  request.rules = DeviceRules::parse_device_list("cuda:0").value();
  GenerationMaker maker(request, {});
  const Generation first = next_on_gpu(maker, nullptr);
  test::RunningServer server(model.directory / "s");
  server.publish(test::served(first));
  auto lease = Lease::attach(model.directory / "s");
  INFO((lease ? std::string() : lease.error().message));
  REQUIRE(lease);
  const auto address_of = [&](std::size_t at) {
    const LeasedTensor& tensor = lease->tensors()[at];
    return static_cast<char*>(lease->arenas()[tensor.arena]->address()) + tensor.place.offset;
  };
  const std::vector<char*> addresses = {address_of(0), address_of(1), address_of(2)};
  const std::shared_ptr<Arena> held = lease->arenas()[0];

  const std::string old_c = model.tensors["c"];
  model.tensors["c"] = std::string(777, 'x');
  std::fstream file(model.path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-777, std::ios::end);
  file << model.tensors["c"];
  file.close();
  const Generation second = next_on_gpu(maker, &first);
  CHECK(second.changed_tensors == 1);
  CHECK(second.report.read_bytes == 777);
  REQUIRE(second.layout.arenas.size() == 2);
  CHECK(second.layout.arenas[0].arena == first.layout.arenas[0].arena);
  for (std::size_t at = 0; at < 3; ++at) {
    const ServedPlace& place = second.layout.places[at];
    CHECK(holds(*second.layout.arenas[place.arena].arena, place.place,
                model.tensors.at(second.plan.tensors[at].name)));
  }

  server.publish(test::served(second));
  REQUIRE(lease->renew(std::chrono::seconds(20)));
  CHECK(lease->changed() == std::vector<std::uint64_t>{2});
  CHECK(address_of(0) == addresses[0]);
  CHECK(address_of(1) == addresses[1]);
  CHECK(address_of(2) != addresses[2]);
  for (const LeasedTensor& tensor : lease->tensors())
    CHECK(holds(*lease->arenas()[tensor.arena], tensor.place, model.tensors.at(tensor.name)));
  CHECK(holds(*held, first.layout.places[2].place, old_c));
}
