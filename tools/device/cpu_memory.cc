// Reads the host's properties from /proc and the control group.
#include "tools/device/cpu_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string_view>
#include <thread>

namespace stfs::device {
namespace {

/// Returns the number after "KEY:" in a file of lines "KEY: NUMBER".
std::optional<std::uint64_t> number_in(const char* path, std::string_view key) {
  std::ifstream in(path);
  for (std::string word; in >> word;) {
    std::uint64_t number = 0;
    if (word == key && in >> number) return number;
  }
  return std::nullopt;
}

/// Returns the first number of a file; nothing if the file says "max".
std::optional<std::uint64_t> number_of(const std::string& path) {
  std::ifstream in(path);
  std::uint64_t number = 0;
  if (in >> number) return number;
  return std::nullopt;
}

/// Returns the directory of this process's control group (version 2), as the mount of this namespace shows
/// it.
std::string control_group() {
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("0::")) return "/sys/fs/cgroup" + line.substr(3);
  }
  return "/sys/fs/cgroup";
}

}  // namespace

MemoryInfo cpu_memory() {
  constexpr std::uint64_t kKibibyte = 1024;
  MemoryInfo memory{.free_bytes = number_in("/proc/meminfo", "MemAvailable:").value_or(0) * kKibibyte,
                    .total_bytes = number_in("/proc/meminfo", "MemTotal:").value_or(0) * kKibibyte};
  const std::string group = control_group();
  const auto limit = number_of(group + "/memory.max");
  const auto used = number_of(group + "/memory.current");
  if (!limit || !used) return memory;
  memory.total_bytes = std::min(memory.total_bytes, *limit);
  // The group's page cache is part of the used memory, but the kernel can reclaim it.
  const std::uint64_t cache = number_in((group + "/memory.stat").c_str(), "inactive_file").value_or(0) +
                              number_in((group + "/memory.stat").c_str(), "active_file").value_or(0);
  const std::uint64_t held = *used - std::min(*used, cache);
  memory.free_bytes = std::min(memory.free_bytes, *limit - std::min(*limit, held));
  return memory;
}

std::string cpu_description() {
  std::string name = "the processor";
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(": ");
    if (!line.starts_with("model name") || colon == std::string::npos) continue;
    name = line.substr(colon + 2);
    break;
  }
  const unsigned cores = std::max(std::thread::hardware_concurrency(), 1U);
  return fmt::format("{}, {} core{}", name, cores, cores == 1 ? "" : "s");
}

}  // namespace stfs::device
