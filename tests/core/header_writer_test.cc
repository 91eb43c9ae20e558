// core/format/header.h, writing.
#include <algorithm>
#include <string>
#include <vector>

#include "core/format/header.h"
#include "support/catch.h"

using namespace stfs;

namespace {

std::string json_of(const std::string& bytes) {
  return bytes.substr(8, bytes.find_last_not_of(' ') - 7);
}

std::uint64_t length_of(const std::string& bytes) {
  const auto length = header_length(std::as_bytes(std::span(bytes)).first(8), bytes.size());
  REQUIRE(length);
  return *length;
}

ErrorCode code_of(const std::vector<TensorSpec>& tensors, const Metadata& metadata = {}) {
  const auto bytes = format_header(tensors, metadata, 8, 0);
  REQUIRE(!bytes);
  return bytes.error().code;
}

}  // namespace

TEST_CASE("a header is written as the reference writes it", "[core][header_writer]") {
  const std::vector<TensorSpec> tensors = {
      {"w\n", Dtype::F32, {2, 3}}, {"s", Dtype::BF16, {}}, {"e", Dtype::U8, {0}}};
  const auto bytes = format_header(tensors, {{"format", "pt"}, {"q", "\""}}, 8, 0);
  REQUIRE(bytes);
  CHECK(json_of(*bytes) == R"({"__metadata__":{"format":"pt","q":"\""},)"
                           R"("w\n":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                           R"("s":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},)"
                           R"("e":{"dtype":"U8","shape":[0],"data_offsets":[26,26]}})");
  CHECK(length_of(*bytes) == bytes->size() - 8);
  CHECK(bytes->size() % 8 == 0);
}

TEST_CASE("a header without tensors is an empty object", "[core][header_writer]") {
  CHECK(json_of(*format_header({}, {}, 8, 0)) == "{}");
  CHECK(json_of(*format_header({}, {{"k", "v"}}, 8, 0)) == R"({"__metadata__":{"k":"v"}})");
}

TEST_CASE("what is written is read back the same", "[core][header_writer]") {
  std::vector<TensorSpec> tensors;
  std::uint64_t data_bytes = 0;
  for (const Dtype dtype : all_dtypes()) {
    tensors.push_back({"t/" + std::string(name_of(dtype)) + "\x01\"\\ü", dtype, {3, 8}});
    data_bytes += *data_size_bytes(dtype, tensors.back().shape);
  }
  tensors.push_back({"", Dtype::F64, {}});
  const Metadata metadata{{"", std::string_view("\0\n", 2)}, {"k", "ü"}};
  const auto bytes = format_header(tensors, metadata, 4096, 100);
  REQUIRE(bytes);
  const auto header = parse_header(std::string_view(*bytes).substr(8), data_bytes + 8);
  REQUIRE(header);
  CHECK(header->metadata == metadata);
  REQUIRE(header->tensors.size() == tensors.size());
  for (std::uint32_t i = 0; i < header->tensors.size(); ++i) {
    const Tensor tensor = header->tensors[i];
    CHECK(tensor.name == tensors[i].name);
    CHECK(tensor.dtype == tensors[i].dtype);
    CHECK(std::equal(tensor.shape.begin(), tensor.shape.end(), tensors[i].shape.begin(),
                     tensors[i].shape.end()));
  }
}

TEST_CASE("the content of a new header is what a parser finds in its text", "[core][header_writer]") {
  const std::vector<std::uint64_t> none = {0};
  const std::vector<std::uint64_t> five = {5};
  const std::vector<std::uint64_t> table = {2, 3};
  const std::string filler = std::string(kFillerPrefix) + "0";
  const std::string other_filler = std::string(kFillerPrefix) + "1";
  const std::string no_filler = std::string(kFillerPrefix) + "2";  // it has another form
  const std::vector<Tensor> tensors = {
      {"b\"\n", Dtype::F32, table, {}},    {"empty", Dtype::U8, none, {}},
      {filler, Dtype::U8, five, {}},       {"scalar", Dtype::BF16, {}, {}},
      {other_filler, Dtype::U8, none, {}}, {no_filler, Dtype::U8, table, {}},
      {"a", Dtype::I16, five, {}},         {"empty too", Dtype::F64, none, {}}};
  const Metadata metadata = {{"format", "pt"}, {"e", ""}};
  const auto header = format_tensors(tensors, metadata);
  REQUIRE(header);
  const auto parsed = parse_header(header->json, std::nullopt);
  REQUIRE(parsed);
  CHECK(header->content.metadata == parsed->metadata);
  CHECK(header->content.fillers == parsed->fillers);
  CHECK(parsed->fillers.size() == 2);
  REQUIRE(header->content.tensors.size() == parsed->tensors.size());
  for (std::uint32_t at = 0; at < parsed->tensors.size(); ++at) {
    const Tensor one = header->content.tensors[at];
    const Tensor other = parsed->tensors[at];
    CAPTURE(other.name);
    CHECK(one.name == other.name);
    CHECK(one.dtype == other.dtype);
    CHECK(std::ranges::equal(one.shape, other.shape));
    CHECK(one.data == other.data);
    CHECK(header->content.tensors.find(other.name) == at);
  }
}

TEST_CASE("no two fillers of a new header have one name", "[core][header_writer]") {
  const std::string name = std::string(kFillerPrefix) + "0";
  CHECK(code_of({{name, Dtype::U8, {1}}, {"a", Dtype::U8, {1}}, {name, Dtype::U8, {2}}}) ==
        ErrorCode::DuplicateKey);
  CHECK(code_of({{name, Dtype::U8, {1}}, {name, Dtype::F32, {1}}}) == ErrorCode::DuplicateKey);
}

TEST_CASE("data start at the alignment, behind at least the slack", "[core][header_writer]") {
  for (const std::uint64_t alignment : {8ULL, 64ULL, 4096ULL, 2097152ULL}) {
    for (const std::uint64_t slack : {0ULL, 1ULL, 4088ULL, 65536ULL}) {
      CAPTURE(alignment, slack);
      const auto bytes = format_header({}, {}, alignment, slack);
      REQUIRE(bytes);
      CHECK(bytes->size() % alignment == 0);
      CHECK(bytes->size() >= 8 + 2 + slack);
      CHECK(bytes->size() < 8 + 2 + slack + alignment);
    }
  }
  CHECK(!format_header({}, {}, 4, 0));
  CHECK(!format_header({}, {}, 24, 0));
  CHECK(!format_header({}, {}, 8, ~0ULL));
}

TEST_CASE("a header that no reader would take is not written", "[core][header_writer]") {
  CHECK(code_of({{"a", Dtype::U8, {}}, {"a", Dtype::I8, {}}}) == ErrorCode::DuplicateKey);
  CHECK(code_of({}, {{"k", "1"}, {"k", "2"}}) == ErrorCode::DuplicateKey);
  CHECK(code_of({{"\xff", Dtype::U8, {}}}) == ErrorCode::InvalidArgument);
  CHECK(code_of({}, {{"k", "\xff"}}) == ErrorCode::InvalidArgument);
  CHECK(code_of({{"__metadata__", Dtype::U8, {}}}) == ErrorCode::InvalidArgument);
  CHECK(code_of({{"a", Dtype::F4, {3}}}) == ErrorCode::MisalignedSlice);
  CHECK(code_of({{"a", Dtype::U8, {1ULL << 63, 2}}}) == ErrorCode::ValidationOverflow);
}

TEST_CASE("a header may have 100,000,000 bytes, and no byte more", "[core][header_writer]") {
  constexpr std::uint64_t kMost = 100'000'000;
  const auto bytes_of = [](std::uint64_t length, std::uint64_t slack_bytes) {
    constexpr std::string_view kRest = R"({"__metadata__":{"k":""}})";
    return format_header({}, {{"k", std::string(length - kRest.size(), 'v')}}, 8, slack_bytes);
  };
  CHECK(bytes_of(kMost, 0).value().size() == 8 + kMost);
  CHECK(bytes_of(kMost - 1, 1).value().size() == 8 + kMost);
  CHECK(bytes_of(kMost - 1, 2).error().code == ErrorCode::HeaderTooLarge);
  const auto refused = bytes_of(kMost + 1, 0);
  REQUIRE(!refused);
  CHECK(refused.error().code == ErrorCode::HeaderTooLarge);
  CHECK(refused.error().message ==
        "a header of 100000008 bytes with its padding, at most 100000000 are allowed");
}

TEST_CASE("tensors are sorted by alignment, the greatest first, then by name", "[core][header_writer]") {
  std::vector<TensorSpec> tensors = {{"b", Dtype::U8, {}},  {"a", Dtype::U8, {}},  {"c", Dtype::BOOL, {}},
                                     {"z", Dtype::F64, {}}, {"m", Dtype::F32, {}}, {"y", Dtype::F64, {}}};
  sort_for_writing(tensors);
  std::string order;
  for (const TensorSpec& tensor : tensors) order += tensor.name;
  CHECK(order == "yzmabc");
}

TEST_CASE("a tensor's size is its shape times its dtype", "[core][header_writer]") {
  const std::uint64_t shape[] = {3, 8};
  CHECK(data_size_bytes(Dtype::F4, shape) == 12U);
  CHECK(data_size_bytes(Dtype::F6_E2M3, shape) == 18U);
  CHECK(data_size_bytes(Dtype::C64, shape) == 192U);
  CHECK(data_size_bytes(Dtype::BOOL, {}) == 1U);
  const std::uint64_t largest[] = {(1ULL << 61) - 1};
  CHECK(data_size_bytes(Dtype::U8, largest) == largest[0]);
}
