// The manifest is read as it was written. A place outside of its arena is refused.
#include "tools/serve/serve_manifest.h"

#include <sys/resource.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/catch.h"
#include "tools/serve/serve_protocol.h"

using namespace stfs;
using namespace stfs::serve;

namespace {

ServeManifest sample() {
  ServeManifest manifest{
      {3, 4711, {"/models/m.safetensors"}, "000042"}, {{"cpu", 1024, 128}, {"cuda:GPU-1", 512, 384}}, {}};
  manifest.tensors = {{"a", Dtype::F32, {2, 3}, 0, {256, 24}, 1},
                      {"b\n\"\xc3\xa9", Dtype::F4, {4}, 1, {510, 2}, 3},
                      {"", Dtype::U8, {}, 0, {1023, 1}, 1},
                      {"none", Dtype::I64, {0, 7}, 1, {512, 0}, 2}};
  return manifest;
}

/// The sample with one member changed.
template <class Change>
int errno_of_manifest(Change&& change) {
  auto document = nlohmann::ordered_json::parse(manifest_text(sample()));
  change(document);
  const auto manifest = parse_manifest(document.dump());
  return manifest ? 0 : manifest.error().errno_value;
}

}  // namespace

TEST_CASE("a manifest is read as it was written", "[tools][serve]") {
  const auto manifest = parse_manifest(manifest_text(sample()));
  REQUIRE(manifest);
  CHECK(manifest->identity.generation == 3);
  CHECK(manifest->identity.server == 4711);
  CHECK(manifest->identity.version == "000042");
  CHECK(manifest->identity.sources == sample().identity.sources);
  REQUIRE(manifest->arenas.size() == 2);
  CHECK(manifest->arenas[1].device == "cuda:GPU-1");
  CHECK(manifest->arenas[1].size_bytes == 512);
  CHECK(manifest->arenas[1].number == 384);
  REQUIRE(manifest->tensors.size() == 4);
  for (std::size_t at = 0; at < 4; ++at) {
    const LeasedTensor wanted = sample().tensors[at];
    const LeasedTensor& tensor = manifest->tensors[at];
    CHECK(tensor.name == wanted.name);
    CHECK(tensor.dtype == wanted.dtype);
    CHECK(tensor.shape == wanted.shape);
    CHECK(tensor.arena == wanted.arena);
    CHECK(tensor.place == wanted.place);
    CHECK(tensor.changed_in == wanted.changed_in);
  }
}

TEST_CASE("a manifest that leads out of an arena, or lies, is refused", "[tools][serve]") {
  using Json = nlohmann::ordered_json;
  CHECK(errno_of_manifest([](Json&) {}) == 0);
  for (const char* member : {"generation", "server", "sources", "arenas", "tensors"}) {
    CHECK(errno_of_manifest([&](Json& document) { document.erase(member); }) == EPROTO);
    CHECK(errno_of_manifest([&](Json& document) { document[member] = "x"; }) == EPROTO);
    CHECK(errno_of_manifest([&](Json& document) { document[member] = {{"x", 1}}; }) == EPROTO);
  }
  for (const char* member : {"name", "dtype", "shape", "arena", "offset", "size_bytes", "changed_in"}) {
    CHECK(errno_of_manifest([&](Json& document) { document["tensors"][0].erase(member); }) == EPROTO);
    CHECK(errno_of_manifest([&](Json& document) { document["tensors"][0][member] = -1; }) == EPROTO);
    CHECK(errno_of_manifest([&](Json& document) { document["tensors"][0][member] = nullptr; }) == EPROTO);
    CHECK(errno_of_manifest([&](Json& document) { document["tensors"][0][member] = 0.5; }) == EPROTO);
  }
  const auto with = [](const char* member, const Json& value) {
    return errno_of_manifest([&](Json& document) { document["tensors"][0][member] = value; });
  };
  CHECK(with("dtype", "F33") == EPROTO);
  CHECK(with("shape", {2, 4}) == EPROTO);
  CHECK(with("shape", {2, "3"}) == EPROTO);
  CHECK(with("shape", {std::uint64_t{1} << 63U, 4}) == EPROTO);  // 2^65 elements: 0 where it wraps
  CHECK(with("arena", 2) == EPROTO);
  CHECK(with("arena", std::uint64_t{1} << 32U) == EPROTO);  // 0 where it is cut
  CHECK(with("offset", 1001) == EPROTO);
  CHECK(with("offset", ~std::uint64_t{0}) == EPROTO);
  CHECK(with("offset", 1000) == 0);
  CHECK(errno_of_manifest([](Json& document) { document["arenas"][0].erase("device"); }) == EPROTO);
  CHECK(errno_of_manifest([](Json& document) { document["arenas"][0]["size_bytes"] = 100; }) == EPROTO);
  CHECK(errno_of_manifest([](Json& document) { document["arenas"][1]["number"] = 128; }) == EPROTO);
  CHECK(errno_of_manifest([](Json& document) { document["arenas"][1].erase("number"); }) == EPROTO);
  CHECK(errno_of_manifest([](Json& document) { document["version"] = 42; }) == EPROTO);
  CHECK(errno_of_manifest([](Json& document) { document["sources"][0] = 1; }) == EPROTO);
  for (const char* text : {"", "x", "[]", "null", "{", "{\"generation\": 1"})
    CHECK_FALSE(parse_manifest(text));
  CHECK_FALSE(parse_manifest(std::string(1'000'000, '[')));
}

TEST_CASE("members of a manifest may come in any order, and others are ignored", "[tools][serve]") {
  const auto manifest_with = [](const std::string& arena_bytes) {
    return parse_manifest(
        R"({"tensors": [{"changed_in": 1, "size_bytes": 2, "offset": 4, "arena": 0, "more": [{}],)"
        R"("shape": [2], "dtype": "U8", "name": "\u0061"}], "more": {"tensors": 1}, "generation": "x",)"
        R"("arenas": [{"number": 7, "size_bytes": )" +
        arena_bytes + R"(, "device": "cpu"}], "server": 1, "generation": 1, "version": "", "sources": []})");
  };
  const auto manifest = manifest_with("6");
  REQUIRE(manifest);
  CHECK(manifest->tensors.front().name == "a");
  CHECK(manifest->identity.generation == 1);
  CHECK(manifest_with("5").error().errno_value == EPROTO);
}

TEST_CASE("a long manifest takes little more memory than its text", "[tools][serve]") {
  const auto peak_bytes = [] {
    struct rusage used {};
    ::getrusage(RUSAGE_SELF, &used);
    return static_cast<std::size_t>(used.ru_maxrss) * 1024;
  };
  const auto refused = [&](const std::string& name, const std::string& item) {
    std::string text = R"({"generation":1,"server":1,"version":"","sources":[],"arenas":[],"tensors":[],)";
    text += '"' + name + "\":[" + item;
    while (text.size() < 20'000'000) text += ',' + item;
    text += "]}";
    const std::size_t before_bytes = peak_bytes();
    const auto manifest = parse_manifest(text);
    CAPTURE(name, item);
    REQUIRE_FALSE(manifest);
    CHECK(manifest.error().errno_value == EPROTO);
    CHECK(peak_bytes() - before_bytes < 5 * text.size());
  };
  refused("tensors", "{}");
  refused("arenas", "{}");
  refused("arenas", R"({"device":"cpu","size_bytes":1,"number":1})");
  refused("sources", R"("")");
}

TEST_CASE("a manifest has no more arenas than a message has", "[tools][serve]") {
  const auto with_arenas = [](std::size_t count) {
    return errno_of_manifest([&](nlohmann::ordered_json& document) {
      while (document["arenas"].size() < count) {
        document["arenas"].push_back(
            {{"device", "cpu"}, {"size_bytes", 1}, {"number", 1000 + document["arenas"].size()}});
      }
    });
  };
  CHECK(with_arenas(kMaxServeArenas) == 0);
  CHECK(with_arenas(kMaxServeArenas + 1) == EPROTO);
}
