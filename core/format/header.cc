// Makes the ten checks of the format. validate() reads as the format's definition. header_parser.cc has the
// grammar of the JSON, header_writer.cc writes headers.
#include "core/format/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <optional>
#include <vector>

#include "core/format/header_parser.h"
#include "core/format/json_string.h"

namespace stfs {
namespace {

tl::unexpected<Error> invalid(ErrorCode code, std::string message) {
  return fail(code, EINVAL, std::move(message));
}

// Returns a shape for a message. Shows the first 16 dimensions of a longer shape.
std::string shown(std::span<const std::uint64_t> shape) {
  constexpr std::size_t kShownDimensions = 16;
  if (shape.size() <= kShownDimensions) return shape_text(shape);
  std::string text = shape_text(shape.first(kShownDimensions));
  text.pop_back();
  return fmt::format("{},...] ({} dimensions)", text, shape.size());
}

// Check 6: the tensor begins where the previous one ended.
Result<void> check_offsets(const Tensor& tensor, std::uint64_t due) {
  const std::uint64_t begin = tensor.data.offset;
  const std::uint64_t end = tensor.data.end();
  if (begin != due) {
    return invalid(
        ErrorCode::InvalidOffset,
        fmt::format("tensor {}: data_offsets [{},{}] {}: the data before it end at {}",
                    in_quotes(tensor.name), begin, end, begin < due ? "overlap" : "leave a hole", due));
  }
  if (end < begin) {
    return invalid(ErrorCode::InvalidOffset,
                   fmt::format("tensor {}: data_offsets [{},{}]: the end is before the beginning",
                               in_quotes(tensor.name), begin, end));
  }
  return {};
}

// Checks 7 to 9: the range has the length that the shape needs.
Result<void> check_size(const Tensor& tensor) {
  const Result<std::uint64_t> due = data_size_bytes(tensor.dtype, tensor.shape);
  if (!due) return tl::unexpected(Error(due.error()).within("tensor " + in_quotes(tensor.name)));
  if (tensor.data.size_bytes != *due) {
    return invalid(ErrorCode::TensorInvalidInfo,
                   fmt::format("tensor {}: data_offsets [{},{}] hold {} bytes, but {} {} needs {}",
                               in_quotes(tensor.name), tensor.data.offset, tensor.data.end(),
                               tensor.data.size_bytes, name_of(tensor.dtype), shown(tensor.shape), *due));
  }
  return {};
}

// Checks 6 to 10: in order of offset, the tensors cover the data exactly.
Result<void> validate(const TensorIndex& tensors, std::optional<std::uint64_t> of_file) {
  std::uint64_t covered_bytes = 0;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const Tensor tensor = tensors[i];
    RETURN_IF_ERROR(check_offsets(tensor, covered_bytes));
    RETURN_IF_ERROR(check_size(tensor));
    covered_bytes = tensor.data.end();
  }
  const std::uint64_t data_size_bytes = of_file.value_or(covered_bytes);
  if (covered_bytes != data_size_bytes) {
    return invalid(ErrorCode::MetadataIncompleteBuffer,
                   fmt::format("the tensors need {} bytes of data, but the file holds {} ({} {})",
                               covered_bytes, data_size_bytes,
                               covered_bytes < data_size_bytes ? data_size_bytes - covered_bytes
                                                               : covered_bytes - data_size_bytes,
                               covered_bytes < data_size_bytes ? "left over" : "missing"));
  }
  return {};
}

/// Moves the fillers from the tensors to Header::fillers.
Header split(TensorIndex tensors, Metadata metadata) {
  Header header{.tensors = {}, .metadata = std::move(metadata), .fillers = {}};
  for (std::uint32_t at = 0; at < tensors.size(); ++at) {
    if (is_filler(tensors[at])) header.fillers.push_back(tensors[at].data);
  }
  if (header.fillers.empty()) {
    header.tensors = std::move(tensors);
    return header;
  }
  TensorIndex::Builder builder;
  for (std::uint32_t at = 0; at < tensors.size(); ++at) {
    const Tensor tensor = tensors[at];
    if (!is_filler(tensor)) builder.add(tensor, at);
  }
  auto built = std::move(builder).build();
  header.tensors = std::move(*built);  // their names are distinct, as before
  return header;
}

Result<Header> parse_and_validate(std::string_view json, std::optional<std::uint64_t> data_size_bytes) {
  Result<ParsedHeader> parsed = parse_header_json(json);
  RETURN_IF_ERROR(parsed);
  auto tensors = std::move(parsed->tensors).build();
  if (!tensors) {
    const DuplicateName& twins = tensors.error();
    return invalid(ErrorCode::DuplicateKey,
                   fmt::format("tensor {} is given twice, at bytes {} and {} of the header",
                               in_quotes(twins.name), twins.first_key_at, twins.second_key_at));
  }
  RETURN_IF_ERROR(validate(*tensors, data_size_bytes));
  parsed->metadata.keep_last_values();  // as the reference does
  return split(std::move(*tensors), std::move(parsed->metadata));
}

}  // namespace

bool is_filler(const Tensor& tensor) {
  return tensor.dtype == Dtype::U8 && tensor.shape.size() == 1 && tensor.name.starts_with(kFillerPrefix);
}

Result<std::uint64_t> header_length(std::span<const std::byte> first, std::uint64_t file_size_bytes) {
  if (file_size_bytes < kHeaderLengthBytes || first.size() < kHeaderLengthBytes) {
    return invalid(
        ErrorCode::HeaderTooSmall,
        fmt::format("a file of {} bytes is not an archive: its first {} bytes hold the size of the header",
                    std::min<std::uint64_t>(file_size_bytes, first.size()), kHeaderLengthBytes));
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kHeaderLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(first[i]) << (8 * i);
  }
  // The file may be private and no archive. A message shows none of its bytes, and this number is made of
  // them.
  if (length > kMaxHeaderBytes) {
    return invalid(ErrorCode::HeaderTooLarge,
                   fmt::format("not a safetensors file: its first {} bytes name a header of more than the {} "
                               "bytes that are allowed",
                               kHeaderLengthBytes, kMaxHeaderBytes));
  }
  if (kHeaderLengthBytes + length > file_size_bytes) {
    return invalid(
        ErrorCode::InvalidHeaderLength,
        fmt::format("the file ends, after {} bytes, before its header does: it is cut off, or not a "
                    "safetensors file",
                    file_size_bytes));
  }
  return length;
}

Result<Header> parse_header(std::string_view json, std::optional<std::uint64_t> data_size_bytes) {
  if (json.size() > kMaxHeaderBytes) {
    return invalid(ErrorCode::HeaderTooLarge,
                   fmt::format("a header of {} bytes, at most {} are allowed", json.size(), kMaxHeaderBytes));
  }
  try {
    return parse_and_validate(json, data_size_bytes);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::OutOfMemory, ENOMEM, "not enough memory for the header");
  }
}

Result<std::uint64_t> data_size_bytes(Dtype dtype, std::span<const std::uint64_t> shape) {
  std::uint64_t product = 1;
  // Multiply from left to right, as the reference does: a zero after an overflow does not undo it.
  for (const std::uint64_t size : shape) {
    if (__builtin_mul_overflow(product, size, &product)) {
      return invalid(ErrorCode::ValidationOverflow,
                     fmt::format("{} {} has more than 2^64-1 elements", name_of(dtype), shown(shape)));
    }
  }
  std::uint64_t bits = 0;
  if (__builtin_mul_overflow(product, std::uint64_t{bits_of(dtype)}, &bits)) {
    return invalid(ErrorCode::ValidationOverflow,
                   fmt::format("{} {} has more than 2^64-1 bits", name_of(dtype), shown(shape)));
  }
  if (bits % 8 != 0) {
    return invalid(ErrorCode::MisalignedSlice,
                   fmt::format("{} {} has {} bits, which is not a whole number of bytes", name_of(dtype),
                               shown(shape), bits));
  }
  return bits / 8;
}

}  // namespace stfs
