// Writes headers as the reference does, so that every reader accepts them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <new>
#include <utility>

#include "core/base/name_hash.h"
#include "core/base/utf8.h"
#include "core/format/header.h"
#include "core/format/json_string.h"
#include "core/format/tensor_index_builder.h"

namespace stfs {
namespace {

Result<void> check_text(std::string_view what, std::string_view text) {
  if (is_utf8(text)) return {};
  return fail(ErrorCode::InvalidArgument, EINVAL, fmt::format("{} {} is not UTF-8", what, in_quotes(text)));
}

tl::unexpected<Error> given_twice(std::string_view what, std::string_view key) {
  return fail(ErrorCode::DuplicateKey, EINVAL, fmt::format("{} {} is given twice", what, in_quotes(key)));
}

void append_number(std::string& json, std::uint64_t number) {
  std::array<char, 20> digits{};
  char* const end = std::to_chars(digits.begin(), digits.end(), number).ptr;
  json.append(digits.begin(), end);
}

Result<void> check_name(std::string_view name) {
  if (name != "__metadata__") return check_text("tensor", name);
  return fail(ErrorCode::InvalidArgument, EINVAL, "a tensor can't be named __metadata__");
}

Result<void> append_metadata(std::string& json, const Metadata& metadata) {
  if (metadata.empty()) return {};
  if (const auto key = metadata.repeated_key()) return given_twice("__metadata__ key", *key);
  json += "\"__metadata__\":{";
  bool is_first = true;
  for (const auto& [key, value] : metadata) {
    RETURN_IF_ERROR(check_text("__metadata__ key", key));
    RETURN_IF_ERROR(check_text("__metadata__ value", value));
    if (!std::exchange(is_first, false)) json += ',';
    append_json_string(json, key);
    json += ':';
    append_json_string(json, value);
  }
  json += '}';
  return {};
}

Result<ByteRange> place_behind(std::uint64_t offset, const Tensor& tensor) {
  const Result<std::uint64_t> size = data_size_bytes(tensor.dtype, tensor.shape);
  if (!size) return tl::unexpected(Error(size.error()).within("tensor " + in_quotes(tensor.name)));
  if (const auto range = ByteRange::checked(offset, *size)) return *range;
  return fail(ErrorCode::ValidationOverflow, EINVAL,
              fmt::format("tensor {}: the data end after byte 2^64-1", in_quotes(tensor.name)));
}

void append_tensor(std::string& json, const Tensor& tensor) {
  if (json.size() > 1) json += ',';
  append_json_string(json, tensor.name);
  json += ":{\"dtype\":\"";
  json += name_of(tensor.dtype);
  json += "\",\"shape\":[";
  for (std::size_t at = 0; at < tensor.shape.size(); ++at) {
    if (at > 0) json += ',';
    append_number(json, tensor.shape[at]);
  }
  json += "],\"data_offsets\":[";
  append_number(json, tensor.data.offset);
  json += ',';
  append_number(json, tensor.data.end());
  json += "]}";
}

Result<FormattedHeader> format(std::span<const Tensor> tensors, const Metadata& metadata) {
  constexpr std::size_t kBytesBesideName = 100;  // of most tensors
  std::size_t likely_bytes = 2;
  for (const Tensor& tensor : tensors) likely_bytes += tensor.name.size() + kBytesBesideName;
  FormattedHeader header{.json = {}, .content = {.tensors = {}, .metadata = metadata, .fillers = {}}};
  header.json.reserve(likely_bytes);
  header.json = "{";
  RETURN_IF_ERROR(append_metadata(header.json, metadata));
  TensorIndex::Builder builder;
  NameSet<std::string_view> reserved;  // the builder gets no fillers, so it does not compare their names
  std::uint64_t end = 0;
  for (std::uint32_t at = 0; at < tensors.size(); ++at) {
    Tensor tensor = tensors[at];
    RETURN_IF_ERROR(check_name(tensor.name));
    const auto range = place_behind(end, tensor);
    RETURN_IF_ERROR(range);
    tensor.data = *range;
    end = range->end();
    append_tensor(header.json, tensor);
    if (tensor.name.starts_with(kFillerPrefix) && !reserved.insert(tensor.name).second)
      return given_twice("tensor", tensor.name);
    if (is_filler(tensor)) {
      header.content.fillers.push_back(tensor.data);
    } else {
      builder.add(tensor, at);
    }
  }
  header.json += '}';
  auto built = std::move(builder).build();
  if (!built) return given_twice("tensor", built.error().name);
  header.content.tensors = std::move(*built);
  header.content.metadata.sort_keys();  // as a parser does
  return header;
}

std::vector<Tensor> tensors_of(std::span<const TensorSpec> specs) {
  std::vector<Tensor> tensors;
  tensors.reserve(specs.size());
  for (const TensorSpec& spec : specs) tensors.push_back({spec.name, spec.dtype, spec.shape, {}});
  return tensors;
}

Result<std::string> format_padded(std::span<const TensorSpec> tensors, const Metadata& metadata,
                                  std::uint64_t alignment, std::uint64_t slack_bytes) {
  auto header = format(tensors_of(tensors), metadata);
  RETURN_IF_ERROR(header);
  const std::uint64_t least = kHeaderLengthBytes + header->json.size() + slack_bytes;
  const std::uint64_t length = (least + alignment - 1) / alignment * alignment - kHeaderLengthBytes;
  if (header->json.size() > kMaxHeaderBytes || length > kMaxHeaderBytes) {
    return fail(ErrorCode::HeaderTooLarge, EFBIG,
                fmt::format("a header of {} bytes with its padding, at most {} are allowed", length,
                            kMaxHeaderBytes));
  }
  return pad_header(std::move(header->json), kHeaderLengthBytes + length);
}

}  // namespace

bool is_written_before(Dtype dtype_a, std::string_view name_a, Dtype dtype_b, std::string_view name_b) {
  // The enumeration is in order of alignment. The reference compares it too (Dtype: Ord).
  return dtype_a != dtype_b ? dtype_a > dtype_b : name_a < name_b;
}

void sort_for_writing(std::vector<TensorSpec>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return is_written_before(a.dtype, a.name, b.dtype, b.name);
  });
}

Result<std::string> format_header(std::span<const TensorSpec> tensors, const Metadata& metadata,
                                  std::uint64_t alignment, std::uint64_t slack_bytes) {
  if (!std::has_single_bit(alignment) || alignment < kHeaderLengthBytes || alignment > kMaxHeaderBytes ||
      slack_bytes > kMaxHeaderBytes) {
    return fail(
        ErrorCode::InvalidArgument, EINVAL,
        fmt::format("data can't be aligned to {} bytes with {} bytes of slack", alignment, slack_bytes));
  }
  try {
    return format_padded(tensors, metadata, alignment, slack_bytes);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::OutOfMemory, ENOMEM, "not enough memory for the header");
  }
}

Result<std::string> format_header_json(std::span<const TensorSpec> tensors, const Metadata& metadata) {
  return guard_memory([&]() -> Result<std::string> {
    auto header = format_tensors(tensors_of(tensors), metadata);
    RETURN_IF_ERROR(header);
    return std::move(header->json);
  });
}

Result<FormattedHeader> format_tensors(std::span<const Tensor> tensors, const Metadata& metadata) {
  return guard_memory([&]() -> Result<FormattedHeader> {
    auto header = format(tensors, metadata);
    if (!header || header->json.size() <= kMaxHeaderBytes) return header;
    return fail(
        ErrorCode::HeaderTooLarge, EFBIG,
        fmt::format("a header of {} bytes, at most {} are allowed", header->json.size(), kMaxHeaderBytes));
  });
}

std::string pad_header(std::string json, std::uint64_t data_offset) {
  const std::uint64_t length = data_offset - kHeaderLengthBytes;
  std::array<char, kHeaderLengthBytes> first{};
  for (unsigned i = 0; i < kHeaderLengthBytes; ++i) first[i] = static_cast<char>(length >> (8 * i) & 0xFF);
  json.insert(0, first.data(), first.size());
  json.resize(data_offset, ' ');
  return json;
}

}  // namespace stfs
