// Converts ranges of numbers on the CPU, and finds the dtypes to convert to.
#include "tools/device/conversion.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "core/format/dtype_text.h"
#include "core/tensor/float_conversion.h"
#include "tools/text/printable.h"

namespace stfs::device {
namespace {

using Special = FloatFormat::Special;

// Sources: OCP 8-bit floating point specification; MX specification 1.0, table 1; for FNUZ arXiv:2206.02915.
constexpr FloatFormat kF64{11, 52, 1023, Special::Ieee};
constexpr FloatFormat kF32{8, 23, 127, Special::Ieee};
constexpr FloatFormat kBf16{8, 7, 127, Special::Ieee};
constexpr FloatFormat kF16{5, 10, 15, Special::Ieee};
constexpr FloatFormat kE5M2{5, 2, 15, Special::Ieee};
constexpr FloatFormat kE4M3{4, 3, 7, Special::AllOnes};
constexpr FloatFormat kE4M3Fnuz{4, 3, 8, Special::MinusZero};
constexpr FloatFormat kE5M2Fnuz{5, 2, 16, Special::MinusZero};
constexpr FloatFormat kE8M0{8, 0, 127, Special::Power};

template <class Word>
Word load(const std::byte* from) {
  Word word{};
  std::memcpy(&word, from, sizeof word);
  return word;
}

/// Converts `count` elements.
template <class From, class To>
std::uint64_t convert_each(const FloatFormat& from_format, const FloatFormat& to_format,
                           const std::byte* from, std::byte* to, std::size_t count) {
  std::uint64_t overflows = 0;
  for (std::size_t at = 0; at < count; ++at) {
    bool overflow = false;
    const auto word = static_cast<To>(
        convert_float(from_format, to_format, load<From>(from + at * sizeof(From)), overflow));
    std::memcpy(to + at * sizeof(To), &word, sizeof word);
    overflows += overflow ? 1U : 0U;
  }
  return overflows;
}

template <class From>
std::uint64_t convert_from(const FloatFormat& from_format, const std::byte* from, Dtype to_dtype,
                           std::byte* to, std::size_t count) {
  switch (to_dtype) {
    case Dtype::F32: return convert_each<From, std::uint32_t>(from_format, kF32, from, to, count);
    case Dtype::BF16: return convert_each<From, std::uint16_t>(from_format, kBf16, from, to, count);
    case Dtype::F16: return convert_each<From, std::uint16_t>(from_format, kF16, from, to, count);
    case Dtype::F8_E4M3: return convert_each<From, std::uint8_t>(from_format, kE4M3, from, to, count);
    case Dtype::F8_E5M2: return convert_each<From, std::uint8_t>(from_format, kE5M2, from, to, count);
    case Dtype::F8_E4M3FNUZ: return convert_each<From, std::uint8_t>(from_format, kE4M3Fnuz, from, to, count);
    case Dtype::F8_E5M2FNUZ: return convert_each<From, std::uint8_t>(from_format, kE5M2Fnuz, from, to, count);
    default: return 0;
  }
}

/// Converts to F32 exactly and vectorized (core/tensor/float_conversion.h). Uses a buffer because `to` may
/// have any alignment.
void widen(Dtype from_dtype, std::span<const std::byte> from, std::byte* to) {
  std::array<float, 2048> block;
  const std::size_t element_bytes = bits_of(from_dtype) / 8;
  while (!from.empty()) {
    const std::size_t count = std::min(block.size(), from.size() / element_bytes);
    static_cast<void>(
        convert_to_float32(from_dtype, from.first(count * element_bytes), std::span(block).first(count)));
    std::memcpy(to, block.data(), count * sizeof(float));
    to += count * sizeof(float);
    from = from.subspan(count * element_bytes);
  }
}

}  // namespace

std::optional<FloatFormat> float_format_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::F64: return kF64;
    case Dtype::F32: return kF32;
    case Dtype::BF16: return kBf16;
    case Dtype::F16: return kF16;
    case Dtype::F8_E5M2: return kE5M2;
    case Dtype::F8_E4M3: return kE4M3;
    case Dtype::F8_E4M3FNUZ: return kE4M3Fnuz;
    case Dtype::F8_E5M2FNUZ: return kE5M2Fnuz;
    case Dtype::F8_E8M0: return kE8M0;
    default: return std::nullopt;
  }
}

bool is_conversion_target(Dtype dtype) {
  return float_format_of(dtype) && dtype != Dtype::F64 && dtype != Dtype::F8_E8M0;
}

std::vector<std::string> conversion_target_names() {
  std::vector<std::string> names;
  for (const Dtype dtype : all_dtypes()) {
    if (is_conversion_target(dtype)) names.emplace_back(name_of(dtype));
  }
  return names;
}

Result<Dtype> conversion_target_named(std::string_view name) {
  const auto wanted = parse_dtype(name);
  if (wanted && is_conversion_target(*wanted)) return *wanted;
  return fail(ErrorCode::InvalidArgument, EINVAL,
              fmt::format("{}: is not a dtype to convert to: choose one of {}", tools::printable_name(name),
                          fmt::join(conversion_target_names(), ", ")));
}

std::uint64_t convert_elements(Dtype from_dtype, std::span<const std::byte> from, Dtype to_dtype,
                               std::span<std::byte> to) {
  const auto format = float_format_of(from_dtype);
  if (!format || from.empty()) return 0;
  if (to_dtype == Dtype::F32 && from_dtype != Dtype::F64) {
    widen(from_dtype, from, to.data());
    return 0;
  }
  const std::size_t element_bytes = bits_of(from_dtype) / 8;
  const std::size_t count = from.size() / element_bytes;
  switch (element_bytes) {
    case 1: return convert_from<std::uint8_t>(*format, from.data(), to_dtype, to.data(), count);
    case 2: return convert_from<std::uint16_t>(*format, from.data(), to_dtype, to.data(), count);
    case 4: return convert_from<std::uint32_t>(kF32, from.data(), to_dtype, to.data(), count);
    default: return convert_from<std::uint64_t>(kF64, from.data(), to_dtype, to.data(), count);
  }
}

}  // namespace stfs::device
