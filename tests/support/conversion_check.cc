// The conversions of uploads as a filter, for the tests that compare them with ml_dtypes:
//
//   conversion_check FROM TO <elements >elements    and on standard error how many could not be held
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "tools/device/conversion.h"

int main(int argc, char** argv) {
  using namespace stfs;
  const auto from = argc == 3 ? dtype_named(argv[1]) : std::nullopt;
  const auto to = argc == 3 ? dtype_named(argv[2]) : std::nullopt;
  if (!from || !to || !device::float_format_of(*from) || !device::is_conversion_target(*to)) {
    fmt::print(stderr, "usage: conversion_check FROM TO\n");
    return 2;
  }
  const std::string bytes(std::istreambuf_iterator<char>(std::cin), {});
  std::vector<std::byte> converted(bytes.size() / (bits_of(*from) / 8) * (bits_of(*to) / 8));
  fmt::print(stderr, "{}\n",
             device::convert_elements(*from, std::as_bytes(std::span(bytes)), *to, converted));
  return std::fwrite(converted.data(), 1, converted.size(), stdout) == converted.size() ? 0 : 1;
}
