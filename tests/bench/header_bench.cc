// Measures the time and the memory that our reader needs for the header of one archive. Prints one line of
// JSON. rows_list.py compares it with the reference library.
//
//   header_bench FILE [REPEATS]
#include <fcntl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/format/header.h"

namespace {

using Clock = std::chrono::steady_clock;

// Returns a value of /proc/self/status in bytes. "VmHWM" is the peak of the process's resident memory.
std::uint64_t memory_bytes(std::string_view name) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with(name)) return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10) * 1024;
  }
  return 0;
}

void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

int fail(const std::string& why) {
  fmt::print(stderr, "header_bench: {}\n", why);
  return 1;
}

int run(const char* path, int repeats) {
  const stfs::UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) return fail(fmt::format("{}: can't be opened", path));
  const auto size = static_cast<std::size_t>(status.st_size);
  void* map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd.get(), 0);
  if (map == MAP_FAILED) return fail(fmt::format("{}: can't be mapped", path));
  const std::span<const std::byte> file(static_cast<const std::byte*>(map), size);

  std::vector<double> seconds;
  std::uint64_t peak_bytes = 0;
  std::uint64_t index_bytes = 0;
  std::uint64_t header_bytes = 0;
  std::uint32_t tensors = 0;
  for (int i = 0; i < repeats; ++i) {
    ::malloc_trim(0);
    reset_peak();
    const std::uint64_t before_bytes = memory_bytes("VmRSS");
    const auto start = Clock::now();
    const auto length = stfs::header_length(file.first(std::min<std::size_t>(8, size)), size);
    if (!length) return fail(length.error().message);
    const std::string_view json(reinterpret_cast<const char*>(file.data()) + 8, *length);
    const auto header = stfs::parse_header(json, size - 8 - *length);
    const std::chrono::duration<double> took = Clock::now() - start;
    if (!header) return fail(header.error().message);
    seconds.push_back(took.count());
    peak_bytes = std::max(peak_bytes, memory_bytes("VmHWM") - before_bytes);
    index_bytes = header->tensors.memory_bytes();
    tensors = header->tensors.size();
    header_bytes = *length;
  }
  std::sort(seconds.begin(), seconds.end());
  fmt::print(
      "{{\"tensors\":{},\"header_bytes\":{},\"median_s\":{:.4f},\"min_s\":{:.4f},\"peak_bytes\":{},"
      "\"index_bytes\":{}}}\n",
      tensors, header_bytes, seconds[seconds.size() / 2], seconds.front(), peak_bytes, index_bytes);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    fmt::print(stderr, "usage: header_bench FILE [REPEATS]\n");
    return 2;
  }
  return run(argv[1], argc == 3 ? std::max(1, std::atoi(argv[2])) : 5);
}
