// core/format/dtype.h
#include "core/format/dtype.h"

#include <algorithm>
#include <map>
#include <string>

#include "support/catch.h"

using namespace stfs;

TEST_CASE("dtypes have the names and sizes of the format", "[core][dtype]") {
  const std::map<std::string_view, unsigned> bits = {
      {"BOOL", 8},        {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},   {"I8", 8},
      {"F8_E5M2", 8},     {"F8_E4M3", 8},     {"F8_E8M0", 8}, {"I16", 16},    {"U16", 16}, {"F16", 16},
      {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"BF16", 16},   {"I32", 32},    {"U32", 32}, {"F32", 32},
      {"C64", 64},        {"F64", 64},        {"I64", 64},    {"U64", 64},
  };
  REQUIRE(bits.size() == kDtypeCount);
  for (const Dtype dtype : all_dtypes()) {
    CAPTURE(std::string(name_of(dtype)));
    REQUIRE(bits.count(name_of(dtype)) == 1);
    CHECK(bits_of(dtype) == bits.at(name_of(dtype)));
    CHECK(dtype_named(name_of(dtype)) == dtype);
  }
}

TEST_CASE("all_dtypes lists each dtype once, in ascending order", "[core][dtype]") {
  const auto all = all_dtypes();
  CHECK(std::adjacent_find(all.begin(), all.end(), std::greater_equal<>()) == all.end());
  CHECK(all.front() == Dtype::BOOL);
  CHECK(all.back() == Dtype::U64);
}

TEST_CASE("a dtype's name is exact", "[core][dtype]") {
  for (const char* name : {"", "f32", "F32 ", " F32", "F3", "F322", "FLOAT", "F8", "f8_e4m3"}) {
    CAPTURE(name);
    CHECK(!dtype_named(name));
  }
}
