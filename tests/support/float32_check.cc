// Our conversion to float32 as a filter, for the tests that compare it with ml_dtypes:
//
//   float32_check DTYPE ELEMENTS <bytes of the tensor >float32
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "core/tensor/float_conversion.h"

int main(int argc, char** argv) {
  const auto dtype = argc == 3 ? stfs::dtype_named(argv[1]) : std::nullopt;
  if (!dtype) {
    fmt::print(stderr, "usage: float32_check DTYPE ELEMENTS\n");
    return 2;
  }
  const std::string bytes(std::istreambuf_iterator<char>(std::cin), {});
  std::vector<float> floats(std::strtoull(argv[2], nullptr, 10));
  const auto converted = stfs::convert_to_float32(*dtype, std::as_bytes(std::span(bytes)), floats);
  if (!converted) {
    fmt::print(stderr, "float32_check: {}\n", converted.error().message);
    return 1;
  }
  return std::fwrite(floats.data(), sizeof(float), floats.size(), stdout) == floats.size() ? 0 : 1;
}
