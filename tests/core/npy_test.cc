// The NumPy headers that NumPy writes are read, and all other headers are refused.
#include "core/tensor/npy.h"

#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace stfs;

namespace {

std::string npy(const std::string& dict, char major = 1) {
  std::string header = dict;
  const std::size_t start = major == 1 ? 10 : 12;
  header.resize((start + dict.size() + 1 + 63) / 64 * 64 - start - 1, ' ');
  header += '\n';
  std::string bytes = "\x93NUMPY";
  bytes += major;
  bytes += '\0';
  for (unsigned at = 0; at < (major == 1 ? 2U : 4U); ++at)
    bytes += static_cast<char>(header.size() >> 8 * at);
  return bytes + header;
}

std::string dict(const std::string& type, const std::string& shape, const std::string& order = "False") {
  return "{'descr': '" + type + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
}

Result<NpyHeader> parse(const std::string& bytes) {
  return parse_npy_header(std::as_bytes(std::span(bytes)));
}

std::string npy_failure(const std::string& bytes) {
  const auto header = parse(bytes);
  return header ? "no failure" : header.error().message;
}

/// Returns the reason why a file with this header is no tensor of that dtype and shape, or "".
std::string misfit(const std::string& dict_text, Dtype dtype, const std::vector<std::uint64_t>& shape,
                   std::uint64_t extra_bytes = 0) {
  const auto header = parse(npy(dict_text));
  if (!header) return header.error().message;
  const auto fits =
      check_npy(*header, header->data_offset + header->data_size_bytes + extra_bytes, dtype, shape);
  return fits ? "" : fits.error().message;
}

}  // namespace

TEST_CASE("npy reads the header of each version", "[core][npy]") {
  for (const char major : {'\1', '\2', '\3'}) {
    const std::string bytes = npy(dict("<f4", "(3, 4)"), major);
    const auto header = parse(bytes + std::string(48, 'x'));
    REQUIRE(header);
    CHECK(header->type_text() == "<f4");
    CHECK_FALSE(header->is_fortran_order);
    CHECK(header->shape == std::vector<std::uint64_t>{3, 4});
    CHECK(header->data_offset == bytes.size());
    CHECK(header->data_size_bytes == 48);
  }
}

TEST_CASE("npy reads every way to write the dict", "[core][npy]") {
  CHECK(parse(npy("{'shape':(),'descr':\"<i8\",'fortran_order':True}"))->shape.empty());
  CHECK(parse(npy(" { 'shape' : ( 7 , ) , 'fortran_order' : False , 'descr' : '|u1' } "))->data_size_bytes ==
        7);
  CHECK(parse(npy(dict("<f8", "(0, 18446744073709551615)")))->data_size_bytes == 0);
}

TEST_CASE("npy refuses what is no NumPy file", "[core][npy]") {
  CHECK(npy_failure("") == "is not a NumPy file: it does not begin like one");
  CHECK(npy_failure("\x93NUMPX\1\0") == "is not a NumPy file: it does not begin like one");
  CHECK(npy_failure(npy(dict("<f4", "()"), '\4')) ==
        "is a NumPy file of version 4.0, expected 1.0, 2.0 or 3.0");
  CHECK(npy_failure(std::string("\x93NUMPY\2\0\xff\xff\xff\x7f{", 13)) == "has a header of 2147483647 bytes");
}

TEST_CASE("npy refuses a header that is cut at any byte", "[core][npy]") {
  const std::string whole = npy(dict("<f4", "(3, 4)"));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK_FALSE(parse(whole.substr(0, size)));
  }
}

TEST_CASE("npy survives every flipped byte of a header", "[core][npy]") {
  const std::string whole = npy(dict("<f4", "(3, 4)"));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      const auto header = parse(flipped);
      if (header) CHECK(header->data_offset <= flipped.size());
    }
  }
}

TEST_CASE("npy names the mistake of a dict", "[core][npy]") {
  CHECK(npy_failure(npy("{'descr': '<f4', 'shape': (1,)}")) == "its header has no 'fortran_order'");
  CHECK(npy_failure(npy("{'fortran_order': False, 'shape': (1,)}")) == "its header has no 'descr'");
  CHECK(npy_failure(npy("{'descr': '<f4', 'fortran_order': False}")) == "its header has no 'shape'");
  CHECK(npy_failure(npy("{'descr': '<f4', 'descr': '<f4'}")) == "its header has 'descr' twice");
  CHECK(npy_failure(npy("{'colour': 1}")) == "its header has a key that no version defines");
  CHECK(npy_failure(npy(dict("<f4", "(3)"))).find("expected a tuple") != std::string::npos);
  CHECK(npy_failure(npy(dict("<f4", "(3 4)"))).find("expected ','") != std::string::npos);
  CHECK(npy_failure(npy(dict("<f4", "(-1,)"))).find("expected a dimension") != std::string::npos);
  CHECK(npy_failure(npy(dict("<f4", "(99999999999999999999,)"))).find("expected a dimension") !=
        std::string::npos);
  CHECK(npy_failure(npy(dict("<f4", "(,)"))).find("expected a dimension") != std::string::npos);
  CHECK(npy_failure(npy(dict("<f4", "()", "false"))).find("expected True or False") != std::string::npos);
  CHECK(npy_failure(npy(dict("<f4", "()") + "x")).find("expected the end of the header") !=
        std::string::npos);
  CHECK(npy_failure(npy("{`descr`: '<f4'}")).find("expected a string") != std::string::npos);
  CHECK(npy_failure(npy("[]")) == "its header is damaged: expected '{' at byte 0 of the header");
  for (const char* type : {"f4", "<f", "<f4x", "", "<", "float32", "<f99999999999999999999"}) {
    CAPTURE(type);
    CHECK(npy_failure(npy(dict(type, "()"))) == "its 'descr' is not a simple type");
  }
  CHECK(npy_failure(npy(dict("|O", "()"))).find("Python objects") != std::string::npos);
  CHECK(npy_failure(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}"))
            .find("structured type") != std::string::npos);
  CHECK(npy_failure(npy(dict("<f8", "(4294967296, 4294967296)"))) == "has a shape that is too large");
  std::string ranks = "(";
  for (int at = 0; at < 65; ++at) ranks += "1, ";
  CHECK(npy_failure(npy(dict("<f8", ranks + ")"))) == "has more than 64 dimensions");
}

TEST_CASE("npy fits a tensor of its own type and shape only", "[core][npy]") {
  const std::vector<std::pair<std::string, Dtype>> types = {
      {"|b1", Dtype::BOOL}, {"|u1", Dtype::U8},  {"|i1", Dtype::I8},  {"<i2", Dtype::I16},
      {"<u2", Dtype::U16},  {"<f2", Dtype::F16}, {"<i4", Dtype::I32}, {"<u4", Dtype::U32},
      {"<f4", Dtype::F32},  {"<c8", Dtype::C64}, {"<f8", Dtype::F64}, {"<i8", Dtype::I64},
      {"<u8", Dtype::U64}};
  for (const auto& [text, dtype] : types) {
    for (const auto& [other_text, other] : types) {
      CAPTURE(text, name_of(other));
      const std::string why = misfit(dict(text, "(2, 3)"), other, {2, 3});
      CHECK(why == (dtype == other ? "" : "holds " + text + ", expected " + std::string(name_of(other))));
    }
  }
  CHECK(misfit(dict("<f4", "(2, 3)"), Dtype::F32, {3, 2}) == "has the shape [2,3], expected [3,2]");
  CHECK_FALSE(misfit(dict("<f4", "(1,)"), Dtype::F32, {}).empty());
  CHECK(misfit(dict("<f4", "()"), Dtype::F32, {}).empty());
}

TEST_CASE("npy lends bf16 and fp8 the types of their size", "[core][npy]") {
  for (const char* type : {"<u2", "<V2", "|V2"}) CHECK(misfit(dict(type, "(5,)"), Dtype::BF16, {5}).empty());
  for (const char* type : {"<f2", "<i2", "|u1", "<u4"}) {
    CAPTURE(type);
    CHECK_FALSE(misfit(dict(type, "(5,)"), Dtype::BF16, {5}).empty());
  }
  for (const Dtype dtype : {Dtype::F8_E4M3, Dtype::F8_E5M2, Dtype::F8_E8M0}) {
    for (const char* type : {"|u1", "|V1", "<f1"}) CHECK(misfit(dict(type, "(5,)"), dtype, {5}).empty());
    CHECK_FALSE(misfit(dict("|i1", "(5,)"), dtype, {5}).empty());
  }
}

TEST_CASE("npy packs elements of less than a byte", "[core][npy]") {
  CHECK(misfit(dict("|u1", "(2, 4)"), Dtype::F4, {2, 8}).empty());
  CHECK(misfit(dict("|u1", "(8,)"), Dtype::F4, {2, 8}).empty());
  CHECK(misfit(dict("|u1", "(2, 6)"), Dtype::F6_E2M3, {2, 8}).empty());
  CHECK_FALSE(misfit(dict("|u1", "(4, 2)"), Dtype::F4, {2, 8}).empty());
  CHECK_FALSE(misfit(dict("|u1", "(2, 8)"), Dtype::F4, {2, 8}).empty());
}

TEST_CASE("npy refuses big-endian data, Fortran order and another length", "[core][npy]") {
  CHECK(misfit(dict(">f4", "(2, 3)"), Dtype::F32, {2, 3}).find("big-endian") != std::string::npos);
  CHECK(misfit(dict("<f4", "(2, 3)", "True"), Dtype::F32, {2, 3}).find("Fortran order") != std::string::npos);
  CHECK(misfit(dict("<f4", "(1, 3)", "True"), Dtype::F32, {1, 3}).empty());  // both orders at once
  CHECK(misfit(dict("<f4", "(2,)"), Dtype::F32, {2}, 1) == "has 9 bytes of data, its header gives 8");
  const auto header = parse(npy(dict("<f4", "(2,)")));
  REQUIRE(header);
  const std::vector<std::uint64_t> shape = {2};
  CHECK_FALSE(check_npy(*header, header->data_offset + 7, Dtype::F32, shape));
  CHECK_FALSE(check_npy(*header, 3, Dtype::F32, shape));
}
