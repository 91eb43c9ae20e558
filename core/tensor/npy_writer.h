// How NumPy sees a tensor: the header of an `.npy` file that holds its bytes.
//
// NumPy has no bfloat16, no fp8 and nothing smaller than a byte. Those appear as unsigned integers of their
// size, elements of 4 and 6 bits as the bytes that they are packed in; only the archive has the true type
// (in a mount: the attribute `user.safetensors.dtype`).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/format/dtype.h"

namespace stfs {

struct NpyForm {
  std::string_view descr;  // "<f4"
  std::vector<std::uint64_t> shape;
};

/// Of elements of less than a byte, the last dimension counts bytes where a row of it is whole bytes; else
/// all of them lie in one dimension. So check_npy() of core/tensor/npy.h takes them back, too.
/// @param size_bytes  of all elements together.
NpyForm npy_form(Dtype dtype, std::span<const std::uint64_t> shape, std::uint64_t size_bytes);

/// Magic, version, length and dictionary (numpy/lib/format.py), padded so that the data begin at a multiple
/// of 64. Version 1.0; 2.0 where more dimensions than a real tensor has make it too long for that.
std::string npy_header(const NpyForm& form);

}  // namespace stfs
