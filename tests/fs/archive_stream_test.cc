// Checks an archive as it arrives in pieces of any size, and stops at its first wrong byte.
#include "fs/write/archive_stream.h"

#include <string>

#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/plain.h"

using namespace stfs;
using namespace stfs::test;

namespace {

const std::string kArchive =
    archive_bytes(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})", "12345");

/// Collects the bytes that a stream passes on.
struct Received {
  std::string data;
  std::size_t headers = 0;
  ArchiveStream stream{
      {.take_header = [this](const Header& header, std::string_view) -> Result<void> {
         headers += header.tensors.size();
         return {};
       },
       .take_data = [this](std::span<const std::byte> bytes, std::uint64_t at) -> Result<void> {
         CHECK(at == data.size());
         data += text_of(bytes);
         return {};
       }}};
  Result<void> write(std::string_view text, std::uint64_t offset) {
    return stream.write(bytes_of(text), offset);
  }
};

}  // namespace

TEST_CASE("an archive may arrive in pieces of any size", "[fs][stream]") {
  for (std::size_t piece = 1; piece <= kArchive.size(); ++piece) {
    Received received;
    for (std::size_t at = 0; at < kArchive.size(); at += piece) {
      CHECK(errno_of(received.stream.check()) == EINVAL);
      REQUIRE(received.write(std::string_view(kArchive).substr(at, piece), at));
    }
    CHECK(received.stream.check());
    CHECK(received.headers == 1);
    CHECK(received.data == "12345");
    CHECK(received.stream.size_bytes() == kArchive.size());
    CHECK(errno_of(received.write("x", kArchive.size())) == EINVAL);
  }
}

TEST_CASE("a stream that is no archive is refused at its first wrong byte", "[fs][stream]") {
  Received received;
  CHECK(errno_of(received.write(std::string(8, '\xff'), 0)) == EINVAL);
  Received order;
  REQUIRE(order.write(kArchive.substr(0, 20), 0));
  CHECK(errno_of(order.write("x", 21)) == EINVAL);
  CHECK(errno_of(order.write("x", 19)) == EINVAL);
  Received wrong;
  std::string bad = kArchive;
  bad[8] = '[';
  CHECK(errno_of(wrong.write(bad, 0)) == EINVAL);
  Received over;
  CHECK(errno_of(over.write(kArchive + "x", 0)) == EINVAL);
}

TEST_CASE("a size may be set before the first byte, and must be right", "[fs][stream]") {
  Received received;
  REQUIRE(received.stream.resize(kArchive.size()));
  REQUIRE(received.write(kArchive, 0));
  CHECK(received.stream.resize(kArchive.size()));
  CHECK(received.stream.check());
  CHECK(errno_of(received.stream.resize(kArchive.size() + 1)) == EINVAL);
  REQUIRE(received.stream.resize(0));
  CHECK(received.stream.size_bytes() == 0);
  received.data.clear();
  REQUIRE(received.stream.resize(kArchive.size() + 1));
  REQUIRE(received.write(kArchive, 0));
  CHECK(errno_of(received.stream.check()) == EINVAL);
}
