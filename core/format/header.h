// The header of an archive: converts bytes to validated tensors and metadata, and back.
//
//   file   = length header data
//   length = 8 bytes, little-endian u64: the size N of the header in bytes
//   header = N bytes of UTF-8 JSON { NAME: {"dtype","shape","data_offsets":[begin,end]}, ...,
//            optionally "__metadata__": { KEY: STRING, ... } }, padded with white space
//   data   = every tensor's bytes, row-major, little-endian, at data_offsets relative to 8+N; the
//            ranges cover the data exactly
//
// Accepts and rejects what the reference library does, with these exceptions: we refuse duplicate keys, the
// array form of an entry, the map form of a dtype, and numbers of more than a million digits in ignored
// fields (tests/reference). Source: safetensors/src/tensor.rs.
//
// The checks, in the order in which the reference makes them:
//    1  the file has 8 bytes
//    2  N <= kMaxHeaderBytes
//    3  8 + N <= the size of the file
//    4  the header is UTF-8
//    5  it is JSON of the form above, without NULs, comments, a byte order mark, lone surrogates, or numbers
//       that are negative or have a fraction or an exponent; each field once, each dtype a known one
//    6  in order of data_offsets, each tensor, even an empty one, begins where the previous one ends
//    7  the number of elements and of bits fits into 64 bits
//    8  the bits are whole bytes
//    9  end - begin is the size that shape and dtype give
//   10  the last tensor ends with the file
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/format/metadata.h"
#include "core/format/tensor_index.h"

namespace stfs {

inline constexpr std::uint64_t kHeaderLengthBytes = 8;
/// The largest header that is accepted (safetensors/src/tensor.rs, MAX_HEADER_SIZE).
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
/// The deepest nesting of JSON objects and arrays, including the root, that the reference's parser reads.
inline constexpr unsigned kMaxHeaderDepth = 127;

struct Header {
  TensorIndex tensors;  // without fillers
  Metadata metadata;
  std::vector<ByteRange> fillers;  // ascending; relative to the first byte of data, as Tensor::data
};

/// The beginning of each filler's name. A filler is a U8 tensor of one dimension. It covers bytes that no
/// tensor uses, because the format has no gaps. Edits make fillers, and use them for new tensors.
inline constexpr std::string_view kFillerPrefix = "__safetensorsfs.free.";
bool is_filler(const Tensor& tensor);

/// Decodes the first eight bytes of a file of file_size_bytes and checks them (checks 1 to 3).
/// @param first  the first bytes of the file, at most 8; fewer only if the file is shorter.
/// @return N, the size of the header in bytes; 8 + N <= file_size_bytes.
Result<std::uint64_t> header_length(std::span<const std::byte> first, std::uint64_t file_size_bytes);

/// Parses and validates the N bytes of JSON (checks 4 to 10), and takes the fillers out of the tensors. Peak
/// memory is at most 4 times json.size() plus a constant. The depth of the document is bounded. Never throws.
/// @param data_size_bytes  size of the file minus 8 minus N. Nothing: the data are still to come. Their size
///                         is then the size that the tensors need.
Result<Header> parse_header(std::string_view json, std::optional<std::uint64_t> data_size_bytes);

/// Describes a tensor for a new header. Names need not be sorted. The data follow in the order of the specs.
struct TensorSpec {
  std::string name;
  Dtype dtype = Dtype::U8;
  std::vector<std::uint64_t> shape;
};

/// Returns the size of a tensor's data in bytes. Makes checks 7 and 8.
Result<std::uint64_t> data_size_bytes(Dtype dtype, std::span<const std::uint64_t> shape);

/// Returns true if the reference writes tensor `a` before `b`: by descending alignment, then by name.
bool is_written_before(Dtype dtype_a, std::string_view name_a, Dtype dtype_b, std::string_view name_b);
/// Sorts as the reference writes tensors.
void sort_for_writing(std::vector<TensorSpec>& tensors);

/// Returns the 8 length bytes and the JSON. Spaces pad the JSON so that the data start at a multiple of
/// `alignment`, and at least slack_bytes of the padding stay free for later edits. Refuses duplicate names,
/// names or metadata that are not UTF-8, and a header over the limit.
/// @param alignment  a power of two, at least 8.
Result<std::string> format_header(std::span<const TensorSpec> tensors, const Metadata& metadata,
                                  std::uint64_t alignment, std::uint64_t slack_bytes);
/// The JSON alone, without padding. Also refuses a JSON over the limit.
Result<std::string> format_header_json(std::span<const TensorSpec> tensors, const Metadata& metadata);
/// The JSON, and the content that parse_header() finds in it.
struct FormattedHeader {
  std::string json;
  Header content;
};
/// Does the same for tensors that exist. Ignores Tensor::data: the data follow in the order of the tensors.
Result<FormattedHeader> format_tensors(std::span<const Tensor> tensors, const Metadata& metadata);
/// Returns the 8 length bytes and the JSON, padded to data_offset bytes in all. data_offset must be large
/// enough for both.
std::string pad_header(std::string json, std::uint64_t data_offset);

}  // namespace stfs
