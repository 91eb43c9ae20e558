#include "core/format/dtype.h"

namespace stfs {
namespace {

struct DtypeRow {
  std::string_view name;
  unsigned bits;
};

// safetensors/src/tensor.rs, Dtype::bitsize.
constexpr std::array<DtypeRow, kDtypeCount> kRows = {{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};
static_assert(static_cast<std::size_t>(Dtype::U64) + 1 == kDtypeCount);

const DtypeRow& row_of(Dtype dtype) {
  return kRows[static_cast<std::size_t>(dtype)];
}

}  // namespace

std::array<Dtype, kDtypeCount> all_dtypes() {
  std::array<Dtype, kDtypeCount> all{};
  for (std::size_t i = 0; i < kDtypeCount; ++i) all[i] = static_cast<Dtype>(i);
  return all;
}

std::string_view name_of(Dtype dtype) {
  return row_of(dtype).name;
}

std::optional<Dtype> dtype_named(std::string_view name) {
  for (std::size_t i = 0; i < kDtypeCount; ++i) {
    if (kRows[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

unsigned bits_of(Dtype dtype) {
  return row_of(dtype).bits;
}

}  // namespace stfs
