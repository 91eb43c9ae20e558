// Parses the header of a NumPy `.npy` file into type, order and shape.
//
//   file   = "\x93NUMPY" major minor length header data
//   length = little-endian u16 (version 1) or u32 (versions 2 and 3) : the size of the header in bytes
//   header = a Python dict of exactly 'descr', 'fortran_order' and 'shape', padded with white space
//
// Source: numpy/lib/format.py. Any bytes are safe input. Structured types and Python objects are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/format/dtype.h"

namespace stfs {

/// The first bytes of every `.npy` file.
inline constexpr std::string_view kNpyMagic = "\x93NUMPY";
/// This many bytes at the start of a file contain every header that is accepted.
inline constexpr std::uint64_t kNpyStartBytes = 12 + 65535;

/// NumPy's own limit (NPY_MAXDIMS of NumPy 2). A tensor of more dimensions has no NumPy file.
inline constexpr std::size_t kMaxNpyRank = 64;

struct NpyHeader {
  char byte_order = '|';  // '<', '>', '=', or '|' if byte order does not apply
  char kind = 'V';        // the type's kind, as NumPy's dtype.kind
  std::uint64_t item_bytes = 0;
  bool is_fortran_order = false;
  std::vector<std::uint64_t> shape;
  std::uint64_t data_offset = 0;      // in the file
  std::uint64_t data_size_bytes = 0;  // by type and shape

  /// The type as the file writes it: "<f4".
  [[nodiscard]] std::string type_text() const;
};

/// Parses the start of a file: its first kNpyStartBytes, or all of a shorter file. The message of a failure
/// (InvalidArgument) has no path.
Result<NpyHeader> parse_npy_header(std::span<const std::byte> start);

/// Returns the dtype for the file's type. Returns nothing if no dtype has that type, and for void, which
/// several dtypes use.
std::optional<Dtype> dtype_of(const NpyHeader& header);

/// Checks that a tensor of that dtype and shape can use the file's data unchanged: C order, little-endian,
/// the same type and shape. NumPy has no bfloat16 and no fp8. Files with such elements have unsigned integers
/// or void (`V`) of the same size, as ml_dtypes saves them too. Elements smaller than a byte are packed, as
/// uint8 or void of one byte, in one dimension or with a packed last dimension.
/// @param file_size_bytes  must be exactly the size that the header gives.
Result<void> check_npy(const NpyHeader& header, std::uint64_t file_size_bytes, Dtype dtype,
                       std::span<const std::uint64_t> shape);

}  // namespace stfs
