// stfs sample: the archive is valid, complete and reproducible, and replaces no existing file unless forced.
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/archive/archive.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tool_run.h"
#include "tools/cli/sample_model.h"
#include "tools/cli/sample_values.h"

using namespace stfs;
using test::content_of;
using test::run_verb;

namespace {

std::unique_ptr<Archive> open(const std::string& path) {
  auto archive = Archive::open(path, Access::ReadOnly);
  if (!archive) FAIL(archive.error().message);
  return std::move(*archive);
}

std::string bytes_of(const Archive& archive, const std::string& name) {
  const auto position = archive.tensors().find(name);
  REQUIRE(position);
  std::vector<std::byte> scratch;
  const auto bytes = archive.read(archive.file_range(archive.tensors()[*position].data), scratch);
  REQUIRE(bytes);
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

/// Checks whether the bits of an element, widened to 64, are a finite number; for IEEE kinds by the exponent.
bool all_ones(std::uint64_t bits, unsigned shift, unsigned width) {
  const std::uint64_t mask = (1ULL << width) - 1;
  return (bits >> shift & mask) == mask;
}

bool is_finite(Dtype dtype, std::uint64_t bits) {
  switch (dtype) {
    case Dtype::F16: return !all_ones(bits, 10, 5);
    case Dtype::BF16: return !all_ones(bits, 7, 8);
    case Dtype::F32:
    case Dtype::C64: return !all_ones(bits, 23, 8);
    case Dtype::F64: return !all_ones(bits, 52, 11);
    case Dtype::F8_E5M2: return !all_ones(bits, 2, 5);
    case Dtype::F8_E4M3: return !all_ones(bits, 0, 7);
    case Dtype::F8_E8M0: return bits != 0xff;
    case Dtype::F8_E4M3FNUZ:
    case Dtype::F8_E5M2FNUZ: return bits != 0x80;
    case Dtype::BOOL: return bits <= 1;
    default: return true;
  }
}

}  // namespace

TEST_CASE("sample writes a model with names and dtypes that everybody knows", "[tools][sample]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "m.safetensors";
  REQUIRE(run_verb(tools::sample, {path}).code == 0);
  const auto archive = open(path);
  REQUIRE(archive->tensors().size() == 21);
  for (std::uint32_t position = 0; position < archive->tensors().size(); ++position) {
    const Tensor tensor = archive->tensors()[position];
    CAPTURE(tensor.name);
    CHECK((tensor.name == "lm_head.weight" || tensor.name.starts_with("model.")));
    CHECK(tensor.name.ends_with(".weight"));
    CHECK((tensor.dtype == Dtype::BF16 || tensor.dtype == Dtype::F16 || tensor.dtype == Dtype::F32));
    CHECK_FALSE(tensor.data.empty());
  }
}

TEST_CASE("sample --odd writes an archive that opens, with every dtype, scalars and empty tensors",
          "[tools][sample]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "m.safetensors";
  const auto run = run_verb(tools::sample, {"--odd", path});
  REQUIRE(run.code == 0);
  CHECK(run.err.empty());
  const auto archive = open(path);
  std::set<Dtype> dtypes;
  bool scalar = false;
  bool empty = false;
  for (std::uint32_t position = 0; position < archive->tensors().size(); ++position) {
    const Tensor tensor = archive->tensors()[position];
    dtypes.insert(tensor.dtype);
    scalar = scalar || tensor.shape.empty();
    empty = empty || tensor.data.empty();
  }
  CHECK(dtypes.size() == kDtypeCount);
  CHECK(scalar);
  CHECK(empty);
  CHECK_FALSE(archive->metadata().empty());
  CHECK(run.out.find("wrote " + path + ": " + std::to_string(archive->tensors().size()) + " tensors") == 0);
}

TEST_CASE("sample --odd holds the names that are hard to show as files", "[tools][sample]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "m.safetensors";
  REQUIRE(run_verb(tools::sample, {"--odd", path}).code == 0);
  const auto archive = open(path);
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string("/"), std::string(".safetensors"),
        std::string("new\nline"), std::string("nul\0byte", 8), std::string("a.b"), std::string("a"),
        std::string("%2F"), std::string(256, 'x')}) {
    CAPTURE(name);
    CHECK(archive->tensors().find(name));
  }
}

TEST_CASE("sample holds a transformer of the layers and width asked for", "[tools][sample]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "m.safetensors";
  REQUIRE(run_verb(tools::sample, {"--layers", "3", "--hidden", "128", path}).code == 0);
  const auto archive = open(path);
  const auto query = archive->tensors().find("model.layers.2.self_attn.q_proj.weight");
  REQUIRE(query);
  CHECK(shape_text(archive->tensors()[*query].shape) == "[128,128]");
  CHECK(archive->tensors()[*query].dtype == Dtype::BF16);
  CHECK_FALSE(archive->tensors().find("model.layers.3.self_attn.q_proj.weight"));
}

TEST_CASE("sample writes the same bytes for the same seed and others for another", "[tools][sample]") {
  const test::TemporaryDirectory directory;
  REQUIRE(run_verb(tools::sample, {directory / "a"}).code == 0);
  REQUIRE(run_verb(tools::sample, {directory / "b", "--seed", "0"}).code == 0);
  REQUIRE(run_verb(tools::sample, {directory / "c", "--seed", "1"}).code == 0);
  CHECK((content_of(directory / "a") == content_of(directory / "b")));
  const std::string name = "lm_head.weight";
  CHECK((bytes_of(*open(directory / "a"), name) != bytes_of(*open(directory / "c"), name)));
}

TEST_CASE("sample keeps a tensor's values when the model around it grows", "[tools][sample]") {
  const test::TemporaryDirectory directory;
  REQUIRE(run_verb(tools::sample, {directory / "a"}).code == 0);
  REQUIRE(run_verb(tools::sample, {directory / "b", "--layers", "5"}).code == 0);
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  CHECK((bytes_of(*open(directory / "a"), name) == bytes_of(*open(directory / "b"), name)));
}

TEST_CASE("sample values are finite in every dtype, and not all the same", "[tools][sample]") {
  for (const Dtype dtype : all_dtypes()) {
    CAPTURE(name_of(dtype));
    std::array<std::byte, 65536> bytes{};
    tools::SampleValues(7, "x", tools::weights_of(dtype)).fill(bytes);
    const unsigned width = dtype == Dtype::C64 ? 4 : std::max(bits_of(dtype) / 8, 1U);
    std::set<std::uint64_t> seen;
    bool finite = true;
    for (std::size_t at = 0; at < bytes.size(); at += width) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, bytes.data() + at, width);
      finite = finite && is_finite(dtype, bits);
      seen.insert(bits);
    }
    CHECK(finite);
    CHECK(seen.size() >= (dtype == Dtype::BOOL ? 2 : 8));
  }
}

TEST_CASE("sample weights are small floats of both signs, and gains are near one", "[tools][sample]") {
  std::array<float, 4096> values{};
  tools::SampleValues(0, "x", tools::weights_of(Dtype::F32)).fill(std::as_writable_bytes(std::span(values)));
  float sum = 0;
  for (const float value : values) {
    REQUIRE(std::abs(value) >= 0.0078125F);
    REQUIRE(std::abs(value) < 0.125F);
    sum += value;
  }
  CHECK(std::abs(sum / 4096) < 0.01F);
  tools::SampleValues(0, "x", tools::gains()).fill(std::as_writable_bytes(std::span(values)));
  for (const float value : values) {
    REQUIRE(value >= 1);
    REQUIRE(value < 1.5F);
  }
}

TEST_CASE("sample --size comes within a row of the size asked for", "[tools][sample]") {
  for (const std::uint64_t size_bytes : {1ULL << 20U, 10ULL << 20U, 1000ULL << 20U, 1ULL << 40U}) {
    const std::uint64_t other_bytes = tools::total_bytes(tools::specimens());
    const auto size = tools::sized_to(size_bytes, other_bytes, 0);
    REQUIRE(size);
    const std::uint64_t total = tools::total_bytes(tools::transformer(*size)) + other_bytes;
    CHECK(total <= size_bytes);
    CHECK(size_bytes - total < 4 * size->hidden);
  }
  const test::TemporaryDirectory directory;
  const auto run = run_verb(tools::sample, {"--json", "--size", "3M", directory / "m"});
  REQUIRE(run.code == 0);
  const auto document = nlohmann::json::parse(run.out);
  CHECK(document["data_size_bytes"].get<std::uint64_t>() > (3U << 20U) - 256);
  CHECK(document["size_bytes"] == std::filesystem::file_size(directory / "m"));
}

TEST_CASE("sample never replaces a file unless forced", "[tools][sample]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory.write("m", "precious");
  const auto refused = run_verb(tools::sample, {path});
  CHECK(refused.code == 1);
  CHECK(refused.err == "stfs sample: " + path + ": exists already: --force replaces it\n");
  CHECK(content_of(path) == "precious");
  CHECK(run_verb(tools::sample, {"--force", path}).code == 0);
  CHECK(open(path)->tensors().size() == 21);
}

TEST_CASE("sample leaves nothing behind where it can't write", "[tools][sample]") {
  const test::TemporaryDirectory directory;
  const auto run = run_verb(tools::sample, {directory / "missing/m"});
  CHECK(run.code == 1);
  CHECK(run.err.find("missing") != std::string::npos);
  CHECK(run_verb(tools::sample, {"--force", directory.path().string()}).code == 1);
  CHECK(std::filesystem::is_empty(directory.path()));
}

TEST_CASE("sample refuses numbers that make no model with exit code 2", "[tools][sample]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "m";
  for (const tools::Arguments& wrong : {tools::Arguments{"--layers", "0"},
                                        {"--layers", "two"},
                                        {"--hidden", "12"},
                                        {"--hidden", "-8"},
                                        {"--size", "10"},
                                        {"--size", "large"},
                                        {"--size", "1G", "--layers", "2"},
                                        {"--seed", "-1"}}) {
    tools::Arguments arguments = wrong;
    arguments.push_back(path);
    CAPTURE(wrong);
    CHECK(run_verb(tools::sample, arguments).code == 2);
    CHECK_FALSE(std::filesystem::exists(path));
  }
}
