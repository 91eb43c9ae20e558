// core/base/error.h
#include "core/base/error.h"

#include <cerrno>
#include <set>
#include <string>

#include "support/catch.h"

using namespace stfs;

TEST_CASE("every error code has a name of its own", "[core][error]") {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::OutOfMemory); ++code) {
    names.emplace(name_of(static_cast<ErrorCode>(code)));
  }
  CHECK(names.size() == static_cast<std::size_t>(ErrorCode::OutOfMemory) + 1);
  CHECK(names.count("Unknown") == 0);
}

TEST_CASE("the format's error codes are named as in the reference, in its order", "[core][error]") {
  const char* names[] = {"HeaderTooSmall",
                         "HeaderTooLarge",
                         "InvalidHeaderLength",
                         "InvalidHeader",
                         "InvalidHeaderDeserialization",
                         "InvalidOffset",
                         "ValidationOverflow",
                         "MisalignedSlice",
                         "TensorInvalidInfo",
                         "MetadataIncompleteBuffer"};
  int code = 0;
  for (const char* name : names) CHECK(name_of(static_cast<ErrorCode>(code++)) == name);
}

TEST_CASE("an error of a system call keeps its errno and says what failed on what", "[core][error]") {
  const Result<int> result = fail_system(ENOSPC, "/models/a.safetensors", "write");
  REQUIRE(!result);
  CHECK(result.error().code == ErrorCode::System);
  CHECK(result.error().errno_value == ENOSPC);
  CHECK(result.error().message == "/models/a.safetensors: write: No space left on device");
}

TEST_CASE("a context goes before the message and changes nothing else", "[core][error]") {
  const Error error = Error{ErrorCode::InvalidOffset, EINVAL, "tensor \"a\""}.within("/a.safetensors");
  CHECK(error.message == "/a.safetensors: tensor \"a\"");
  CHECK(error.code == ErrorCode::InvalidOffset);
  CHECK(error.errno_value == EINVAL);
}

TEST_CASE("a context that the message begins with is not said twice", "[core][error]") {
  const Error error = Error{ErrorCode::System, EIO, "/a.safetensors: read: why"}.within("/a.safetensors");
  CHECK(error.message == "/a.safetensors: read: why");
  CHECK(Error{ErrorCode::System, EIO, "/a.safetensors2: why"}.within("/a").message ==
        "/a: /a.safetensors2: why");
}

TEST_CASE("a failure passes from one type of result to another", "[core][error]") {
  Result<int> first = fail(ErrorCode::NotFound, ENOENT, "no such tensor");
  const Result<std::string> second = pass_on(std::move(first));
  REQUIRE(!second);
  CHECK(second.error().code == ErrorCode::NotFound);
  CHECK(second.error().message == "no such tensor");
}
