// Counts the values of tensors by their magnitude, for the histogram of stfs verify --plot.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/error.h"
#include "core/format/dtype.h"

namespace stfs::tools {

/// Returns true if ValueSpectrum::add() accepts the dtype: floating types of whole bytes, without C64.
bool has_spectrum(Dtype dtype);

/// The finite values, as float32. Four counts for each doubling of the magnitude.
class ValueSpectrum {
 public:
  static constexpr std::size_t kSteps = 1024;  // the exponent of a float32 and two bits behind it
  static constexpr unsigned kStepsOfDoubling = 4;
  /// An outlier is this many times as large as the root mean square of its tensor, or larger. The steps give
  /// the answer, so up to a fifth more may be needed.
  static constexpr double kOutlierTimes = 6;

  /// @param elements  whole elements.
  Result<void> add(Dtype dtype, std::span<const std::byte> elements);
  ValueSpectrum& operator+=(const ValueSpectrum& other);
  /// Counts the outliers of one tensor. Call once, before results of tensors are added.
  void count_outliers();

  [[nodiscard]] const std::array<std::uint64_t, kSteps>& counts() const { return counts_; }
  [[nodiscard]] std::uint64_t zeros() const { return zeros_; }
  [[nodiscard]] std::uint64_t negative() const { return negative_; }
  /// All finite values, zeros too.
  [[nodiscard]] std::uint64_t values() const { return values_; }
  [[nodiscard]] std::uint64_t outliers() const { return outliers_; }
  [[nodiscard]] double largest() const { return largest_; }
  [[nodiscard]] double root_mean_square() const;

  /// The least magnitude of a step.
  static double least_of(std::size_t step);

 private:
  std::array<std::uint64_t, kSteps> counts_{};
  std::uint64_t zeros_ = 0;
  std::uint64_t negative_ = 0;
  std::uint64_t values_ = 0;
  std::uint64_t outliers_ = 0;
  double largest_ = 0;
  double squares_ = 0;
};

}  // namespace stfs::tools
