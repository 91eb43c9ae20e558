// Writes headers as the reference does, so that every reader accepts them.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <iterator>
#include <new>
#include <utility>

#include "core/base/name_hash.h"
#include "core/base/utf8.h"
#include "core/format/header.h"
#include "core/format/json_string.h"

namespace stfs {
namespace {

Result<void> check_text(std::string_view what, std::string_view text) {
  if (is_utf8(text)) return {};
  return fail(ErrorCode::InvalidArgument, EINVAL, fmt::format("{} {} is not UTF-8", what, in_quotes(text)));
}

tl::unexpected<Error> given_twice(std::string_view what, std::string_view key) {
  return fail(ErrorCode::DuplicateKey, EINVAL, fmt::format("{} {} is given twice", what, in_quotes(key)));
}

Result<void> check_key(NameSet<std::string_view>& seen, std::string_view what, std::string_view key) {
  if (auto ok = check_text(what, key); !ok) return ok;
  return seen.insert(key).second ? Result<void>() : given_twice(what, key);
}

Result<void> append_metadata(std::string& json, const Metadata& metadata) {
  if (metadata.empty()) return {};
  if (const auto key = metadata.repeated_key()) return given_twice("__metadata__ key", *key);
  json += "\"__metadata__\":{";
  bool is_first = true;
  for (const auto& [key, value] : metadata) {
    if (auto ok = check_text("__metadata__ key", key); !ok) return ok;
    if (auto ok = check_text("__metadata__ value", value); !ok) return ok;
    if (!std::exchange(is_first, false)) json += ',';
    append_json_string(json, key);
    json += ':';
    append_json_string(json, value);
  }
  json += '}';
  return {};
}

// Appends the entry of one tensor whose data begin at `offset`, and moves `offset` to their end.
Result<void> append_tensor(std::string& json, const TensorSpec& tensor, std::uint64_t& offset) {
  const Result<std::uint64_t> size = data_size_bytes(tensor.dtype, tensor.shape);
  if (!size) return tl::unexpected(Error(size.error()).within("tensor " + in_quotes(tensor.name)));
  const auto range = ByteRange::checked(offset, *size);
  if (!range) {
    return fail(ErrorCode::ValidationOverflow, EINVAL,
                fmt::format("tensor {}: the data end after byte 2^64-1", in_quotes(tensor.name)));
  }
  if (json.size() > 1) json += ',';
  append_json_string(json, tensor.name);
  fmt::format_to(std::back_inserter(json), ":{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}",
                 name_of(tensor.dtype), shape_text(tensor.shape), range->offset, range->end());
  offset = range->end();
  return {};
}

Result<std::string> format_json(std::span<const TensorSpec> tensors, const Metadata& metadata) {
  std::string json = "{";
  if (auto ok = append_metadata(json, metadata); !ok) return pass_on(std::move(ok));
  NameSet<std::string_view> seen;
  std::uint64_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name == "__metadata__") {
      return fail(ErrorCode::InvalidArgument, EINVAL, "a tensor can't be named __metadata__");
    }
    if (auto ok = check_key(seen, "tensor", tensor.name); !ok) return pass_on(std::move(ok));
    if (auto ok = append_tensor(json, tensor, offset); !ok) return pass_on(std::move(ok));
  }
  json += '}';
  return json;
}

Result<std::string> format_padded(std::span<const TensorSpec> tensors, const Metadata& metadata,
                                  std::uint64_t alignment, std::uint64_t slack_bytes) {
  Result<std::string> json = format_json(tensors, metadata);
  if (!json) return json;
  const std::uint64_t least = kHeaderLengthBytes + json->size() + slack_bytes;
  const std::uint64_t length = (least + alignment - 1) / alignment * alignment - kHeaderLengthBytes;
  if (json->size() > kMaxHeaderBytes || length > kMaxHeaderBytes) {
    return fail(ErrorCode::HeaderTooLarge, EFBIG,
                fmt::format("a header of {} bytes with its padding, at most {} are allowed", length,
                            kMaxHeaderBytes));
  }
  return pad_header(*json, kHeaderLengthBytes + length);
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
    auto json = format_json(tensors, metadata);
    if (!json || json->size() <= kMaxHeaderBytes) return json;
    return fail(ErrorCode::HeaderTooLarge, EFBIG,
                fmt::format("a header of {} bytes, at most {} are allowed", json->size(), kMaxHeaderBytes));
  });
}

std::string pad_header(std::string_view json, std::uint64_t data_offset) {
  const std::uint64_t length = data_offset - kHeaderLengthBytes;
  std::string out;
  out.reserve(data_offset);
  for (unsigned i = 0; i < kHeaderLengthBytes; ++i) out += static_cast<char>(length >> (8 * i) & 0xFF);
  out += json;
  out.resize(data_offset, ' ');
  return out;
}

}  // namespace stfs
