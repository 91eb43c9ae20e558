// The bit patterns of the sample values.
#include "tools/cli/sample_values.h"

#include <cstring>

namespace stfs::tools {
namespace {

constexpr std::uint64_t kBytes = 0x0101010101010101;
constexpr std::uint64_t kHalves = 0x0001000100010001;
constexpr std::uint64_t kWords = 0x0000000100000001;
constexpr std::uint64_t kGoldenGamma = 0x9e3779b97f4a7c15;

/// The output function of SplitMix64 (Steele, Lea, Flood 2014). It turns a counter into random bits, so the
/// compiler may compute several values at once.
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111eb;
  return value ^ (value >> 31U);
}

/// FNV-1a. Unlike std::hash, it gives the same result on every machine and in every version.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

BitPattern weights_of(Dtype dtype) {
  // For the wide floats: random sign, mantissa and the two low bits of an exponent that starts at 2^-7.
  switch (dtype) {
    case Dtype::BOOL: return {kBytes, 0};
    case Dtype::F16: return {0x8fff * kHalves, 0x2000 * kHalves};
    case Dtype::BF16: return {0x81ff * kHalves, 0x3c00 * kHalves};
    case Dtype::F32:
    case Dtype::C64: return {0x81ffffff * kWords, 0x3c000000 * kWords};
    case Dtype::F64: return {0x803fffffffffffff, 0x3f80000000000000};
    // Infinities and NaNs of E5M2 and the NaN of E4M3 have every bit of the exponent set: clear one. The
    // NaN of the FNUZ kinds is the negative zero: set a bit of the exponent.
    case Dtype::F8_E5M2:
    case Dtype::F8_E4M3: return {0xbf * kBytes, 0};
    case Dtype::F8_E5M2FNUZ:
    case Dtype::F8_E4M3FNUZ: return {0x9f * kBytes, 0x20 * kBytes};
    case Dtype::F8_E8M0: return {0x07 * kBytes, 0x78 * kBytes};  // 2^-7 to 2^0; 0xff is the NaN
    case Dtype::F4:
    case Dtype::F6_E2M3:
    case Dtype::F6_E3M2:
    case Dtype::U8:
    case Dtype::I8:
    case Dtype::I16:
    case Dtype::U16:
    case Dtype::I32:
    case Dtype::U32:
    case Dtype::I64:
    case Dtype::U64: return {};
  }
  return {};
}

BitPattern gains() {
  return {0x003fffff * kWords, 0x3f800000 * kWords};
}

SampleValues::SampleValues(std::uint64_t seed, std::string_view name, BitPattern pattern)
    : state_(mixed(seed + kGoldenGamma) ^ hash_of(name)), pattern_(pattern) {}

void SampleValues::fill(std::span<std::byte> to) {
  const auto next = [&] { return (mixed(state_ += kGoldenGamma) & pattern_.random) | pattern_.fixed; };
  // Works on little-endian machines only, like the mapping of archives.
  for (; to.size() >= sizeof(std::uint64_t); to = to.subspan(sizeof(std::uint64_t))) {
    const std::uint64_t value = next();
    std::memcpy(to.data(), &value, sizeof value);
  }
  if (to.empty()) return;
  const std::uint64_t value = next();
  std::memcpy(to.data(), &value, to.size());
}

}  // namespace stfs::tools
