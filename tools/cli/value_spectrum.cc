#include "tools/cli/value_spectrum.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/tensor/float_conversion.h"

namespace stfs::tools {
namespace {

constexpr unsigned kStepShift = 21;  // of the bits of a float32
constexpr std::uint32_t kMagnitude = 0x7fffffffU;
constexpr std::uint32_t kInfinity = 0x7f800000U;

}  // namespace

bool has_spectrum(Dtype dtype) {
  return is_floating(dtype) && bits_of(dtype) % 8 == 0;
}

Result<void> ValueSpectrum::add(Dtype dtype, std::span<const std::byte> elements) {
  constexpr std::size_t kAtOnce = 4096;
  std::array<float, kAtOnce> values;
  const std::size_t element_bytes = bits_of(dtype) / 8;
  while (!elements.empty()) {
    const std::size_t count = std::min(kAtOnce, elements.size() / element_bytes);
    if (count == 0) break;
    const auto these = std::span(values).first(count);
    RETURN_IF_ERROR(convert_to_float32(dtype, elements.first(count * element_bytes), these));
    elements = elements.subspan(count * element_bytes);
    for (const float value : these) {
      const auto bits = std::bit_cast<std::uint32_t>(value);
      const std::uint32_t magnitude = bits & kMagnitude;
      if (magnitude >= kInfinity) continue;
      ++values_;
      if (magnitude == 0) {
        ++zeros_;
        continue;
      }
      negative_ += bits >> 31U;
      ++counts_[magnitude >> kStepShift];
      const double size = std::fabs(static_cast<double>(value));
      largest_ = std::max(largest_, size);
      squares_ += size * size;
    }
  }
  return {};
}

ValueSpectrum& ValueSpectrum::operator+=(const ValueSpectrum& other) {
  std::transform(counts_.begin(), counts_.end(), other.counts_.begin(), counts_.begin(), std::plus<>());
  zeros_ += other.zeros_;
  negative_ += other.negative_;
  values_ += other.values_;
  outliers_ += other.outliers_;
  largest_ = std::max(largest_, other.largest_);
  squares_ += other.squares_;
  return *this;
}

void ValueSpectrum::count_outliers() {
  const double least = kOutlierTimes * root_mean_square();
  outliers_ = 0;
  constexpr std::size_t kFiniteSteps = kSteps - kStepsOfDoubling;  // the last ones are infinity and NaN
  for (std::size_t step = kFiniteSteps; step-- > 0 && least_of(step) >= least;) outliers_ += counts_[step];
}

double ValueSpectrum::root_mean_square() const {
  return values_ == 0 ? 0 : std::sqrt(squares_ / static_cast<double>(values_));
}

double ValueSpectrum::least_of(std::size_t step) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(step) << kStepShift);
}

}  // namespace stfs::tools
