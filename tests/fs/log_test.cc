// Tests lines for a person that contain names from untrusted files.
#include "fs/base/log.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "tests/support/captured_stderr.h"
#include "tests/support/catch.h"

using namespace stfs;
using stfs::test::CapturedStderr;

TEST_CASE("a line of the log names the program and ends", "[fs][log]") {
  const CapturedStderr captured;
  log::info("{} of {}", 1, 2);
  log::warning("careful");
  log::error("broken");
  CHECK(captured.text() == "safetensorsfs: 1 of 2\nsafetensorsfs: careful\nsafetensorsfs: broken\n");
}

TEST_CASE("control characters of a name can neither break a line nor steer a terminal", "[fs][log]") {
  const CapturedStderr captured;
  log::info("{}", "a\nsafetensorsfs: forged\x1b[2J\x7f\r\t");
  log::info("{}", std::string_view("nul\0end", 7));
  CHECK(captured.text() ==
        "safetensorsfs: a\\nsafetensorsfs: forged\\x1b[2J\\x7f\\r\\t\nsafetensorsfs: nul\\x00end\n");
}

TEST_CASE("neither C1 controls nor marks of direction nor bytes that are not UTF-8 reach the log",
          "[fs][log]") {
  const CapturedStderr captured;
  log::info("{}", "\u009b2J\u202egnp.txt\u2069\u2028\x9b");
  CHECK(captured.text() == "safetensorsfs: \\u009b2J\\u202egnp.txt\\u2069\\u2028\\x9b\n");
}

TEST_CASE("other characters stand in the log as they are", "[fs][log]") {
  const CapturedStderr captured;
  log::info("{}", "h\xC3\xA9 {} %s \\ \"");
  CHECK(captured.text() == "safetensorsfs: h\xC3\xA9 {} %s \\ \"\n");
}

TEST_CASE("lines of several threads never mix", "[fs][log]") {
  constexpr int kThreads = 4;
  constexpr int kLines = 200;
  std::string text;
  {
    const CapturedStderr captured;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([thread] {
        for (int line = 0; line < kLines; ++line)
          log::info("{}", std::string(500, static_cast<char>('a' + thread)));
      });
    }
    for (std::thread& thread : threads) thread.join();
    text = captured.text();
  }
  int whole = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    REQUIRE(end != std::string::npos);
    const std::string line = text.substr(at, end - at);
    whole += line.size() == 515 && line == "safetensorsfs: " + std::string(500, line.back()) ? 1 : 0;
    at = end + 1;
  }
  CHECK(whole == kThreads * kLines);
}
