// The header of a NumPy `.npy` file: bytes -> type, order and shape.
//
//   file   = "\x93NUMPY" major minor length header data
//   length = little-endian u16 (version 1) or u32 (versions 2 and 3) : the size of the header in bytes
//   header = a Python dict of exactly 'descr', 'fortran_order' and 'shape', padded with white space
//
// Source: numpy/lib/format.py. Any bytes are safe input. Structured types and Python objects are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/format/dtype.h"

namespace stfs {

/// What every file of NumPy begins with.
inline constexpr std::string_view kNpyMagic = "\x93NUMPY";
/// So much of the start of a file holds every header that is accepted.
inline constexpr std::uint64_t kNpyStartBytes = 12 + 65535;

struct NpyHeader {
  char byte_order = '|';  // '<', '>', '=' or '|': does not apply
  char kind = 'V';        // of the type, as NumPy's dtype.kind
  std::uint64_t item_bytes = 0;
  bool is_fortran_order = false;
  std::vector<std::uint64_t> shape;
  std::uint64_t data_offset = 0;      // in the file
  std::uint64_t data_size_bytes = 0;  // what type and shape promise

  /// "<f4", as the file has it.
  [[nodiscard]] std::string type_text() const;
};

/// Parses the start of a file: its first kNpyStartBytes, or all of a shorter one. The message of a
/// failure (InvalidArgument) has no path.
Result<NpyHeader> parse_npy_header(std::span<const std::byte> start);

/// Whether the file's data are, as they lie there, those of a tensor of that dtype and shape: C order,
/// little-endian, the same type and shape. NumPy has no bfloat16 and no fp8: they come as unsigned
/// integers or void (`V`) of their size, which is also what ml_dtypes saves. Elements of less than a byte
/// come packed, as uint8 or void of one byte, in one dimension or with the packed last dimension.
/// @param file_size_bytes  must be exactly what the header promises.
Result<void> check_npy(const NpyHeader& header, std::uint64_t file_size_bytes, Dtype dtype,
                       std::span<const std::uint64_t> shape);

}  // namespace stfs
