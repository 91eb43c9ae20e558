// The text of a slice: texts with the same meaning, and texts that are refused with the place of the error.
#include <limits>
#include <string>

#include "core/tensor/slice.h"
#include "tests/core/sliced.h"
#include "tests/support/catch.h"

using namespace stfs;
using namespace stfs::test;

TEST_CASE("spaces and a comma at the end mean nothing", "[core][slice]") {
  CHECK(parsed(" 1 : 3 : 1 , ... , -1 ", {4, 5}).shape == Shape{2});
  CHECK(parsed(" 1 : 3 ,", {4, 5}).extent == ByteRange{5, 10});
  CHECK(parsed("0,", {4, 5}).shape == Shape{5});
}

TEST_CASE("a text that is no slice is refused with its place", "[core][slice]") {
  const Shape shape = {4, 5};
  CHECK(failure("", shape) == "byte 0: the text ends, expected an integer, a range or ...");
  CHECK(failure("1,,2", shape) == "byte 2: found \",\", expected an integer, a range or ...");
  CHECK(failure(",", shape) == "byte 0: found \",\", expected an integer, a range or ...");
  CHECK(failure("None", shape) == "byte 0: found \"None\", expected an integer, a range or ...");
  CHECK(failure("1, newaxis", shape) == "byte 3: found \"newaxis\", expected an integer, a range or ...");
  CHECK(failure("True", shape) == "byte 0: found \"True\", expected an integer, a range or ...");
  CHECK(failure("1.5", shape) == "byte 1: found \".\", expected a comma or the end");
  CHECK(failure("1 2", shape) == "byte 2: found \"2\", expected a comma or the end");
  CHECK(failure("0x10", shape) == "byte 1: found \"x\", expected a comma or the end");
  CHECK(failure("1:2:3:4", shape) == "byte 5: found \":\", expected a comma or the end");
  CHECK(failure("0:--1", shape) == "byte 2: found \"-\", expected a comma or the end");
  CHECK(failure("0:1,(2)", shape) == "byte 4: found \"(\", expected an integer, a range or ...");
  CHECK(failure("...,1,...", shape) == "byte 6: a second ...");
  CHECK(failure("....", shape) == "byte 3: found \".\", expected a comma or the end");
  CHECK(failure("0,::0", shape) == "byte 2: a step of 0");
  CHECK(failure("\x1b[31m", shape) == "byte 0: found \"\\u001b\", expected an integer, a range or ...");
  CHECK(failure(std::string("1\0002", 3), shape) == "byte 1: found \"\\u0000\", expected a comma or the end");
}

TEST_CASE("indices beyond a dimension, or more of them than dimensions, are refused", "[core][slice]") {
  const Shape shape = {4, 5};
  CHECK(failure("4", shape) == "byte 0: index 4 is out of range for dimension 0, which has 4 elements");
  CHECK(failure("0:1, -6", shape) ==
        "byte 5: index -6 is out of range for dimension 1, which has 5 elements");
  CHECK(failure("5:5,5", shape) == "byte 4: index 5 is out of range for dimension 1, which has 5 elements");
  CHECK(failure("0", {0}) == "byte 0: index 0 is out of range for dimension 0, which has 0 elements");
  CHECK(failure("...,:,9", shape) == "byte 6: index 9 is out of range for dimension 1, which has 5 elements");
  CHECK(failure("0,0,0", shape) == "byte 4: more indices than the 2 dimensions of [4,5]");
  CHECK(failure(":,:,...,:", shape) == "byte 8: more indices than the 2 dimensions of [4,5]");
}

TEST_CASE("numbers of any length are clipped in ranges and out of range as integers", "[core][slice]") {
  const std::string many(1'000'000, '9');
  CHECK(parsed("0:" + many, {4, 5}).shape == Shape{4, 5});
  CHECK(parsed("-" + many + ":" + many + ":" + many, {4, 5}).shape == Shape{1, 5});
  CHECK(parsed(many + ":-" + many + ":-" + many, {4, 5}).extent == ByteRange{15, 5});
  CHECK(parsed(many + "::-1", {4, 5}).shape == Shape{4, 5});
  CHECK(parsed("-9223372036854775808::-1", {4, 5}).shape == Shape{0, 5});
  CHECK(parsed("::-9223372036854775808", {4, 5}).extent == ByteRange{15, 5});
  CHECK(failure(many, {4, 5}) != "no failure");
  CHECK(failure("-" + many, {4, 5}) != "no failure");
  CHECK(failure("9223372036854775808", {4, 5}) != "no failure");
}

TEST_CASE("a text of a million indices is refused at the first that is too many", "[core][slice]") {
  std::string text;
  for (int i = 0; i < 1'000'000; ++i) text += "0,";
  CHECK(failure(text, {4, 5}) == "byte 4: more indices than the 2 dimensions of [4,5]");
  CHECK(failure(std::string(1'000'000, ':'), {4, 5}) == "byte 2: found \":\", expected a comma or the end");
  CHECK(failure(std::string(1'000'000, ' '), {4, 5}) ==
        "byte 1000000: the text ends, expected an integer, a range or ...");
}

TEST_CASE("shapes that no tensor or no NumPy array has are refused", "[core][slice]") {
  CHECK(failure("0", {1ULL << 40, 1ULL << 40}) != "no failure");
  CHECK(failure("0", {1ULL << 63}) != "no failure");
  CHECK(failure("0:0", {3}, Dtype::F4) != "no failure");
  const std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  CHECK(failure(":", {0, most}) ==
        "dimension 1 has 18446744073709551615 elements, more than an index can count");
  CHECK(parsed(":,5:", {0, most / 2}).shape == Shape{0, most / 2 - 5});
  CHECK(parsed(":,-1", {0, most / 2, most / 2}).shape == Shape{0, most / 2});
  CHECK(parsed("...,0", Shape(64, 1)).shape == Shape(63, 1));
  CHECK(failure("...,0", Shape(65, 1)) == "the tensor has 65 dimensions, a slice has at most 64");
}
