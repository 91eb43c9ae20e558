#include "core/storage/other_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <charconv>
#include <fstream>
#include <sstream>
#include <system_error>

namespace stfs {
namespace {

/// Calls `visit` with the name of each entry until it returns true. @return whether it did.
bool any_entry(const std::filesystem::path& directory, const std::function<bool(const std::string&)>& visit) {
  std::error_code failed;
  for (std::filesystem::directory_iterator entry(directory, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    if (visit(entry->path().filename().string())) return true;
  }
  return false;
}

}  // namespace

bool any_process(const std::function<bool(pid_t)>& visit) {
  return any_entry("/proc", [&](const std::string& name) {
    pid_t process = 0;
    const auto [end, failed] = std::from_chars(name.data(), name.data() + name.size(), process);
    return failed == std::errc() && end == name.data() + name.size() && visit(process);
  });
}

std::optional<KnownFile> known_file(const std::filesystem::path& link) {
  struct statx status {};
  // FUSE answers from its cache. It refuses a process that it does not serve, unless that asks for nothing:
  // then the kernel gives the device.
  for (const unsigned wanted : {STATX_INO | STATX_MODE, 0U}) {
    if (::statx(AT_FDCWD, link.c_str(), AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, wanted, &status) != 0) continue;
    const std::uint64_t device = std::uint64_t{status.stx_dev_major} << 32U | status.stx_dev_minor;
    if (wanted == 0) return KnownFile{.device = device};
    return KnownFile{.device = device, .inode = status.stx_ino, .mode = status.stx_mode};
  }
  return std::nullopt;
}

bool any_descriptor(pid_t process, const std::function<bool(const std::string&, const KnownFile&)>& visit) {
  const std::filesystem::path descriptors = fmt::format("/proc/{}/fd", process);
  return any_entry(descriptors, [&](const std::string& descriptor) {
    const auto file = known_file(descriptors / descriptor);
    return file && visit(descriptor, *file);
  });
}

std::string comm_of(pid_t process) {
  std::string name;
  std::getline(std::ifstream(fmt::format("/proc/{}/comm", process)), name);
  return name;
}

std::vector<std::string> status_words(pid_t process, std::string_view name) {
  std::ifstream file(fmt::format("/proc/{}/status", process));
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    std::istringstream words(line.substr(name.size()));
    std::vector<std::string> found;
    for (std::string word; words >> word;) found.push_back(word);
    return found;
  }
  return {};
}

}  // namespace stfs
