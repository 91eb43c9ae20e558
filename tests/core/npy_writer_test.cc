// NumPy headers that we write: the reader for NumPy's headers reads them back.
#include "core/tensor/npy_writer.h"

#include <span>
#include <string>
#include <vector>

#include "core/format/header.h"
#include "core/tensor/npy.h"
#include "tests/support/catch.h"

using namespace stfs;

TEST_CASE("an npy header is read back as what the tensor is, for every dtype", "[core][npy_writer]") {
  for (const Dtype dtype : all_dtypes()) {
    for (const std::vector<std::uint64_t>& shape :
         {std::vector<std::uint64_t>{}, {8}, {2, 3, 4}, {3, 8}, {0, 5}, {4, 6}, {2, 0}}) {
      const auto size_bytes = data_size_bytes(dtype, shape);
      if (!size_bytes) continue;  // a part of a byte
      const std::string header = npy_header(npy_form(dtype, shape, *size_bytes));
      CAPTURE(header);
      CHECK(header.size() % 64 == 0);
      CHECK(header.back() == '\n');
      const auto parsed = parse_npy_header(std::as_bytes(std::span(header)));
      REQUIRE(parsed);
      CHECK(parsed->data_offset == header.size());
      CHECK(check_npy(*parsed, header.size() + *size_bytes, dtype, shape));
    }
  }
}

TEST_CASE("a shape too long for version 1 of the npy format takes version 2", "[core][npy_writer]") {
  const std::vector<std::uint64_t> ones(30'000, 1);
  const std::string header = npy_header({.descr = "|u1", .shape = ones});
  CHECK(header[6] == 2);
  CHECK(header.size() % 64 == 0);
}
