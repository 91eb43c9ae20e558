#include "core/format/dtype_text.h"

#include <algorithm>
#include <array>

namespace stfs {
namespace {

struct DtypeAlias {
  std::string_view name;  // lower case
  Dtype dtype;
};

// The names of NumPy, ml_dtypes and PyTorch, and the short names that model configurations use.
constexpr std::array kAliases = std::to_array<DtypeAlias>({
    {"bool_", Dtype::BOOL},
    {"int8", Dtype::I8},
    {"int16", Dtype::I16},
    {"int32", Dtype::I32},
    {"int64", Dtype::I64},
    {"uint8", Dtype::U8},
    {"uint16", Dtype::U16},
    {"uint32", Dtype::U32},
    {"uint64", Dtype::U64},
    {"float16", Dtype::F16},
    {"fp16", Dtype::F16},
    {"half", Dtype::F16},
    {"bfloat16", Dtype::BF16},
    {"float32", Dtype::F32},
    {"fp32", Dtype::F32},
    {"float64", Dtype::F64},
    {"fp64", Dtype::F64},
    {"double", Dtype::F64},
    {"complex64", Dtype::C64},
    {"float8_e4m3fn", Dtype::F8_E4M3},
    {"fp8_e4m3", Dtype::F8_E4M3},
    {"fp8_e4m3fn", Dtype::F8_E4M3},
    {"f8_e4m3fn", Dtype::F8_E4M3},
    {"float8_e5m2", Dtype::F8_E5M2},
    {"fp8_e5m2", Dtype::F8_E5M2},
    {"float8_e4m3fnuz", Dtype::F8_E4M3FNUZ},
    {"float8_e5m2fnuz", Dtype::F8_E5M2FNUZ},
    {"float8_e8m0fnu", Dtype::F8_E8M0},
    {"float6_e2m3fn", Dtype::F6_E2M3},
    {"float6_e3m2fn", Dtype::F6_E3M2},
    {"float4_e2m1fn", Dtype::F4},
    {"float4_e2m1fn_x2", Dtype::F4},
});

/// Converts ASCII only, so that the locale changes nothing.
char upper_case(char c) {
  return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
}

}  // namespace

std::optional<Dtype> parse_dtype(std::string_view text) {
  const auto equals = [](std::string_view a, std::string_view b) {
    return std::ranges::equal(a, b, {}, upper_case, upper_case);
  };
  if (text.size() > 6 && equals(text.substr(0, 6), "torch.")) text.remove_prefix(6);
  for (const Dtype dtype : all_dtypes()) {
    if (equals(text, name_of(dtype))) return dtype;
  }
  for (const DtypeAlias& alias : kAliases) {
    if (equals(text, alias.name)) return alias.dtype;
  }
  return std::nullopt;
}

}  // namespace stfs
