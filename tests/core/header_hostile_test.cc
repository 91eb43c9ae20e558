// Parses headers that are built to need much memory. tests/fuzz parses random ones.
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/format/header.h"
#include "support/catch.h"
#include "support/emulated.h"
#include "support/header_text.h"
#include "support/skip.h"

// Defined in a program that is compiled with this sanitizer.
extern "C" void __asan_init() __attribute__((weak));
extern "C" void __tsan_init() __attribute__((weak));

using namespace stfs;
using stfs::test::entry;

namespace {

// A value of /proc/self/status in bytes.
std::uint64_t status_bytes(std::string_view name) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.compare(0, name.size(), name) == 0) {
      return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10) * 1024;
    }
  }
  return 0;
}

/// Returns the reason why the memory of the process says nothing about the memory for a header, or "". The
/// program is asked, because its tests may be compiled without a sanitizer.
std::string why_not_measured() {
  if (__asan_init != nullptr || __tsan_init != nullptr) return "a sanitizer keeps what is freed";
  return test::is_emulated() ? "an emulator has memory of its own" : "";
}

// Memory that parsing the header took at its peak, the result included, as multiples of the header.
double peak_factor(const std::string& json, std::uint64_t data_size_bytes) {
  // Makes malloc return large blocks to the system when they are freed, whatever earlier tests have freed.
  ::mallopt(M_MMAP_THRESHOLD, 128 * 1024);
  ::malloc_trim(0);
  // A block that grows uses the free memory behind it first, and leaves that memory free when it moves. So
  // the free memory that earlier tests have left is filled.
  std::vector<std::unique_ptr<char[]>> filling;
  const std::size_t heap_bytes = ::mallinfo2().arena;
  while (::mallinfo2().arena == heap_bytes)
    filling.push_back(std::make_unique_for_overwrite<char[]>(64 * 1024));
  std::ofstream("/proc/self/clear_refs") << "5";  // resets the peak
  const std::uint64_t before_bytes = status_bytes("VmRSS");
  const auto header = parse_header(json, data_size_bytes);
  const std::uint64_t peak_bytes = status_bytes("VmHWM");
  return static_cast<double>(peak_bytes - std::min(before_bytes, peak_bytes)) /
         static_cast<double>(json.size());
}

std::string repeated(std::size_t count, const std::function<std::string(std::size_t)>& piece) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ",") + piece(i);
  return text;
}

}  // namespace

TEST_CASE("header takes at most four times its size in memory", "[core][header][hostile]") {
  if (const std::string why = why_not_measured(); !why.empty()) {
    test::note_skip(why);
    return;
  }
  constexpr std::size_t kSize = 30'000'000;  // large, so that constants have no weight
  constexpr double kLimit = 4.05;
  const std::string dimensions = repeated(kSize / 2, [](std::size_t) { return std::string("1"); });
  CHECK(peak_factor("{\"a\":" + entry("U8", dimensions, 0, 1) + "}", 1) < kLimit);
  CHECK(peak_factor(test::many_tensors(kSize / 80, "model.layers.weight."), kSize / 80) < kLimit);
  CHECK(peak_factor(test::many_tensors(kSize / 60, ""), kSize / 60) < kLimit);
  CHECK(peak_factor("{\"" + std::string(kSize, 'n') + "\":" + entry("U8", "1", 0, 1) + "}", 1) < kLimit);
  CHECK(peak_factor("{\"__metadata__\":{\"k\":\"" + std::string(kSize, 'v') + "\"}}", 0) < kLimit);
  const auto pair = [](std::size_t i) { return "\"" + std::to_string(i) + "\":\"\""; };
  CHECK(peak_factor("{\"__metadata__\":{" + repeated(kSize / 12, pair) + "}}", 0) < kLimit);
  CHECK(peak_factor("{\"a\":{\"x\":[" + dimensions + "]}}", 0) < kLimit);
}

TEST_CASE("a header that is refused takes no more memory than one that is not", "[core][header][hostile]") {
  if (const std::string why = why_not_measured(); !why.empty()) {
    test::note_skip(why);
    return;
  }
  constexpr std::size_t kSize = 30'000'000;
  constexpr double kLimit = 4.05;
  // Each of these headers is almost entirely one token, or the white space before one.
  CHECK(peak_factor("{" + std::string(kSize, '\n') + "x", 0) < kLimit);
  CHECK(peak_factor("{\"a\":" + std::string(kSize, ' ') + "x", 0) < kLimit);
  CHECK(peak_factor("{\"" + std::string(kSize, 'n'), 0) < kLimit);
  CHECK(peak_factor("{\"" + std::string(kSize, 'n') + "\\q\":1}", 0) < kLimit);
  CHECK(peak_factor("{\"" + std::string(kSize, 'n') + "\"x", 0) < kLimit);
  CHECK(peak_factor("{\"" + std::string(kSize, 'n') + "\":1}", 0) < kLimit);
  CHECK(peak_factor("{\"a\":{\"x\":" + std::string(kSize, '1') + "}}", 0) < kLimit);
}
