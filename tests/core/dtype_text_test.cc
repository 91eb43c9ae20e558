// core/format/dtype_text.h
#include "core/format/dtype_text.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "support/catch.h"

using namespace stfs;

TEST_CASE("a person may type a dtype in any case, or as NumPy, ml_dtypes and PyTorch name it",
          "[core][dtype]") {
  for (const Dtype dtype : all_dtypes()) {
    CAPTURE(std::string(name_of(dtype)));
    std::string lower(name_of(dtype));
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
    CHECK(parse_dtype(name_of(dtype)) == dtype);
    CHECK(parse_dtype(lower) == dtype);
  }
  CHECK(parse_dtype("float32") == Dtype::F32);
  CHECK(parse_dtype("torch.float32") == Dtype::F32);
  CHECK(parse_dtype("fp16") == Dtype::F16);
  CHECK(parse_dtype("half") == Dtype::F16);
  CHECK(parse_dtype("Bfloat16") == Dtype::BF16);
  CHECK(parse_dtype("uint8") == Dtype::U8);
  CHECK(parse_dtype("bool") == Dtype::BOOL);
  CHECK(parse_dtype("float8_e4m3fn") == Dtype::F8_E4M3);
  CHECK(parse_dtype("float8_e8m0fnu") == Dtype::F8_E8M0);
  CHECK(parse_dtype("float4_e2m1fn_x2") == Dtype::F4);
}

TEST_CASE("a text whose meaning is not certain is no dtype", "[core][dtype]") {
  // "float" is 64 bits in NumPy and 32 in PyTorch; float8_e4m3 of ml_dtypes has infinities, F8_E4M3 has none.
  for (const char* text : {"", "float", "int", "long", "float8", "float8_e4m3", "fp8", "F17", " F32", "F32 ",
                           "torch.", "torch", "torch.torch.float32", "float128", "complex128"}) {
    CAPTURE(text);
    CHECK(!parse_dtype(text));
  }
}
