// Checks the promises of core/format/header.h for any file.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>

#include "core/base/utf8.h"
#include "core/format/header.h"
#include "tests/fuzz/target.h"
#include "tests/support/archive_mutator.h"

namespace stfs::test {
namespace {

// A name in a message has at most kQuotedBytes, and the text around the name is no longer than that.
constexpr std::size_t kLongestMessage = 1000;

const std::vector<TensorDraft>& likely_tensors() {
  static const std::vector<TensorDraft> drafts = {
      {"a", "F32", {2, 3}},    {"b\n", "BF16", {}},       {"c", "F4", {0}},
      {"d", "F6_E2M3", {4}},   {"\u00e9/\"", "U8", {5}},  {"model.layers.0.weight", "F8_E4M3", {1, 16}},
      {"e", "I64", {1, 1, 1}}, {"zero", "C64", {3, 0, 7}}};
  return drafts;
}

Bytes make(Choices& choices) {
  return choices.one_in(12) ? make_noise(choices) : make_archive(likely_tensors(), choices);
}

void mutate(Bytes& input, Choices& choices) {
  static constexpr std::string_view kOther =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":null})";
  mutate_archive(input, kOther, choices);
}

/// Checks that the message is one printable line, and short.
std::string judge_refusal(const Error& error) {
  const bool has_control = std::ranges::any_of(
      error.message, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == '\x7f'; });
  if (error.errno_value != EINVAL) return "refused with another errno than EINVAL";
  if (error.code > ErrorCode::DuplicateKey) return "refused with a code that is not the format's";
  if (error.message.empty() || error.message.size() > kLongestMessage) {
    return fmt::format("a message of {} bytes", error.message.size());
  }
  return has_control || !is_utf8(error.message) ? "a message that is no text" : "";
}

/// Checks that the tensors cover the data without a hole, that each has the right size, and that its name
/// finds it.
std::string judge_tensors(const Header& header, std::uint64_t data_size_bytes) {
  std::uint64_t covered_bytes = 0;
  for (std::uint32_t i = 0; i < header.tensors.size(); ++i) {
    const Tensor tensor = header.tensors[i];
    if (tensor.data.offset != covered_bytes) return "a hole or an overlap was accepted";
    // Divides the size by the extents, because a product can wrap around.
    std::uint64_t left = tensor.data.size_bytes * 8;
    bool has_zero = false;
    for (const std::uint64_t size : tensor.shape) {
      has_zero = has_zero || size == 0;
      if (has_zero) continue;
      if (left % size != 0) return "a wrong size was accepted";
      left /= size;
    }
    if (left != (has_zero ? 0 : bits_of(tensor.dtype))) return "a wrong size was accepted";
    if (header.tensors.find(tensor.name) != i) return "a tensor is not found by its name";
    if (!is_utf8(tensor.name)) return "a name that is no UTF-8 was accepted";
    covered_bytes = tensor.data.end();
  }
  return covered_bytes == data_size_bytes ? "" : "tensors that do not cover the data were accepted";
}

/// Checks that the header can be written, and read again.
std::string judge_way_back(const Header& header, std::uint64_t data_size_bytes) {
  std::vector<TensorSpec> tensors;
  for (std::uint32_t i = 0; i < header.tensors.size(); ++i) {
    const Tensor tensor = header.tensors[i];
    tensors.push_back({std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}});
  }
  const auto written = format_header(tensors, header.metadata, 8, 0);
  if (!written) return "what was accepted can't be written: " + written.error().message;
  const auto again = parse_header(std::string_view(*written).substr(kHeaderLengthBytes), data_size_bytes);
  if (!again) return "what was written is refused: " + again.error().message;
  if (again->metadata != header.metadata || again->tensors.size() != header.tensors.size()) {
    return "what was written reads differently";
  }
  for (std::uint32_t i = 0; i < header.tensors.size(); ++i) {
    const Tensor before = header.tensors[i];
    const auto found = again->tensors.find(before.name);
    if (!found) return "a tensor was not written";
    const Tensor after = again->tensors[*found];
    if (after.dtype != before.dtype || !std::ranges::equal(after.shape, before.shape) ||
        after.data != before.data) {
      return "a tensor was written as another one";
    }
  }
  return "";
}

FuzzOutcome fuzz_one(std::span<const std::byte> input) {
  const auto length =
      header_length(input.first(std::min<std::size_t>(kHeaderLengthBytes, input.size())), input.size());
  if (!length) return {"no length", judge_refusal(length.error())};
  if (*length > input.size() - kHeaderLengthBytes)
    return {"no length", "a header behind the end of the file"};
  const std::string_view json(reinterpret_cast<const char*>(input.data()) + kHeaderLengthBytes, *length);
  const std::uint64_t data_size_bytes = input.size() - kHeaderLengthBytes - *length;
  const auto header = parse_header(json, data_size_bytes);
  if (!header) {
    const bool is_grammar = header.error().code <= ErrorCode::InvalidHeaderDeserialization;
    return {is_grammar ? "no grammar" : "no sense", judge_refusal(header.error())};
  }
  // One byte of data too many, and one byte too few.
  if (parse_header(json, data_size_bytes + 1) ||
      (data_size_bytes > 0 && parse_header(json, data_size_bytes - 1))) {
    return {"accepted", "the header is accepted over other data as well"};
  }
  std::string wrong = judge_tensors(*header, data_size_bytes);
  if (wrong.empty()) wrong = judge_way_back(*header, data_size_bytes);
  return {"accepted", std::move(wrong)};
}

}  // namespace

const FuzzTarget& header_target() {
  static constexpr FuzzShare shares[] = {
      // Too much damage would only reach the first checks.
      {"accepted", 10},
      {"no sense", 10},
      {"no grammar", 10},
  };
  static constexpr FuzzTarget target{"header", shares, make, mutate, fuzz_one};
  return target;
}

}  // namespace stfs::test
