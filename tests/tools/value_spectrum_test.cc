// The counts of values by magnitude.
#include "tools/cli/value_spectrum.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::tools;

namespace {

ValueSpectrum spectrum_of(const std::vector<float>& values) {
  ValueSpectrum spectrum;
  REQUIRE(spectrum.add(Dtype::F32, std::as_bytes(std::span(values))));
  return spectrum;
}

}  // namespace

TEST_CASE("each finite value that is not zero is counted in the step of its magnitude",
          "[tools][value_spectrum]") {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto spectrum =
      spectrum_of({1, -1, 1.24F, 1.25F, 0, -0.0F, std::nanf(""), infinity, -infinity, 1e-40F});
  CHECK(spectrum.values() == 7);
  CHECK(spectrum.zeros() == 2);
  CHECK(spectrum.negative() == 1);
  CHECK(spectrum.largest() == 1.25);
  for (std::size_t step = 0; step < ValueSpectrum::kSteps; ++step) {
    if (ValueSpectrum::least_of(step) == 1) {
      CHECK(spectrum.counts()[step] == 3);
      CHECK(spectrum.counts()[step + 1] == 1);
    }
  }
  CHECK(std::accumulate(spectrum.counts().begin(), spectrum.counts().end(), std::uint64_t{0}) == 5);
}

TEST_CASE("an outlier is six times the root mean square, or larger", "[tools][value_spectrum]") {
  std::vector<float> values(10'000, 0.5F);
  values[17] = -100;
  auto spectrum = spectrum_of(values);
  spectrum.count_outliers();
  CHECK(spectrum.outliers() == 1);
  CHECK(std::abs(spectrum.root_mean_square() - std::sqrt((9999 * 0.25 + 10'000) / 10'000)) < 1e-12);
  auto zeros = spectrum_of(std::vector<float>(10, 0));
  zeros.count_outliers();
  CHECK(zeros.outliers() == 0);
  ValueSpectrum sum = spectrum;
  sum += spectrum;
  CHECK(sum.outliers() == 2);
  CHECK(sum.values() == 20'000);
}

TEST_CASE("only floating types of whole bytes have a spectrum", "[tools][value_spectrum]") {
  CHECK(has_spectrum(Dtype::BF16));
  CHECK(has_spectrum(Dtype::F8_E4M3));
  CHECK_FALSE(has_spectrum(Dtype::F4));
  CHECK_FALSE(has_spectrum(Dtype::I32));
  CHECK_FALSE(has_spectrum(Dtype::C64));
}
