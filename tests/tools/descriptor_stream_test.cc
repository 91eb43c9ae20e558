// Standard output: all of it arrives, and a failure is reported.
#include "tools/cli/descriptor_stream.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <sstream>

#include "core/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace stfs;
using tools::close_output;
using tools::DescriptorStream;

TEST_CASE("descriptor stream writes small and large pieces in order", "[tools][descriptor_stream]") {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "out";
  std::string expected;
  {
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT, 0600));
    DescriptorStream out(file.get());
    for (const std::size_t size : {1U, 65535U, 1U, 65536U, 200000U, 3U, 65533U, 10U, 0U, 131072U, 5U}) {
      const std::string piece(size, static_cast<char>('a' + size % 26));
      out.write(piece.data(), static_cast<std::streamsize>(piece.size()));
      out << '|' << size;
      expected += piece + '|' + std::to_string(size);
    }
    std::ostringstream err;
    CHECK(close_output(out, 0, "ls", err) == 0);
  }
  CHECK((test::content_of(path) == expected));
}

TEST_CASE("a full disk makes the command fail with the reason", "[tools][descriptor_stream]") {
  for (const std::size_t size : {std::size_t{10}, std::size_t{1} << 20U}) {
    const UniqueFd full(::open("/dev/full", O_WRONLY));
    DescriptorStream out(full.get());
    out << std::string(size, 'x');
    std::ostringstream err;
    CHECK(close_output(out, 0, "ls", err) == 1);
    CHECK(err.str() == "stfs ls: standard output: write: No space left on device\n");
  }
}

TEST_CASE("a reader that has gone makes the command end quietly", "[tools][descriptor_stream]") {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  ::close(ends[0]);
  const UniqueFd pipe(ends[1]);
  DescriptorStream out(pipe.get());
  out << "nobody reads this";
  std::ostringstream err;
  CHECK(close_output(out, 0, "ls", err) == 1);
  CHECK(err.str().empty());
  std::signal(SIGPIPE, before);
}

TEST_CASE("a closed standard output fails only a command that has something to say",
          "[tools][descriptor_stream]") {
  std::ostringstream err;
  DescriptorStream quiet(-1);
  CHECK(close_output(quiet, 0, "ls", err) == 0);
  DescriptorStream out(-1);
  out << "x";
  CHECK(close_output(out, 0, "ls", err) == 1);
  CHECK(err.str() == "stfs ls: standard output: write: Bad file descriptor\n");
}
