// The 22 element types of the format and their sizes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace stfs {

/// Spelled as in an archive's header (safetensors/src/tensor.rs, enum Dtype), and in the order of that enum:
/// ascending alignment. Writers sort by alignment.
enum class Dtype : std::uint8_t {
  BOOL,
  F4,
  F6_E2M3,
  F6_E3M2,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  F8_E8M0,
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64,
};

inline constexpr std::size_t kDtypeCount = 22;

/// Each dtype once, in the order of the enumeration.
std::array<Dtype, kDtypeCount> all_dtypes();

/// The name as in the header: exact, upper case.
std::string_view name_of(Dtype dtype);

/// The dtype with exactly this name, or nothing.
std::optional<Dtype> dtype_named(std::string_view name);

/// Size of one logical element in bits: 4, 6, 8, 16, 32 or 64.
unsigned bits_of(Dtype dtype);

}  // namespace stfs
