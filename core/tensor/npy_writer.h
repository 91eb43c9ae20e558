// Writes the header of an `.npy` file that holds a tensor's bytes.
//
// NumPy has no bfloat16, no fp8 and nothing smaller than a byte. These types appear as unsigned integers of
// their size, elements of 4 and 6 bits as the bytes that they are packed in. Only the archive has the true
// type (in a mount: the attribute `user.safetensors.dtype`).
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

/// For elements smaller than a byte, the last dimension counts bytes if each of its rows is whole bytes.
/// Otherwise the shape has one dimension, which counts all bytes. check_npy() of core/tensor/npy.h accepts
/// both forms.
/// @param size_bytes  of all elements together.
NpyForm npy_form(Dtype dtype, std::span<const std::uint64_t> shape, std::uint64_t size_bytes);

/// Returns magic, version, length and dictionary (numpy/lib/format.py), padded so that the data begin at a
/// multiple of 64. The version is 1.0, or 2.0 if the header is too long for that: no real tensor has so many
/// dimensions.
std::string npy_header(const NpyForm& form);

}  // namespace stfs
