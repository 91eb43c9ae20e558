// Parses lines "lock: 1: OFDLCK ADVISORY WRITE -1 MAJ:MIN:INODE FIRST LAST" of proc_pid_fdinfo(5).
#include "core/storage/lock_holder.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <system_error>

namespace stfs {
namespace {

namespace fs = std::filesystem;

bool names_lock(const std::string& line, const FileIdentity& file, ByteRange range) {
  if (!line.starts_with("lock:")) return false;
  std::istringstream words(line);
  std::string skipped;
  std::string kind;
  std::string device_and_inode;
  std::string first;
  std::string last;
  words >> skipped >> skipped >> kind >> skipped >> skipped >> skipped >> device_and_inode >> first >> last;
  if (kind != "OFDLCK") return false;
  // On btrfs the device number differs from stat's, so compare only the inode.
  if (!device_and_inode.ends_with(":" + std::to_string(file.inode))) return false;
  std::uint64_t from = 0;
  std::uint64_t to = std::numeric_limits<std::uint64_t>::max();
  std::from_chars(first.data(), first.data() + first.size(), from);
  if (last != "EOF") std::from_chars(last.data(), last.data() + last.size(), to);
  return from < range.end() && range.offset <= to;
}

bool holds_lock(const fs::path& descriptors, const FileIdentity& file, ByteRange range) {
  std::error_code failed;
  for (fs::directory_iterator entry(descriptors, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    std::ifstream lines(entry->path());
    for (std::string line; std::getline(lines, line);) {
      if (names_lock(line, file, range)) return true;
    }
  }
  return false;
}

}  // namespace

std::optional<pid_t> find_lock_holder(const FileIdentity& file, ByteRange range) {
  std::error_code failed;
  for (fs::directory_iterator entry("/proc", failed), end; !failed && entry != end; entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    pid_t pid = 0;
    const auto [parsed, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc{} || parsed != name.data() + name.size()) continue;
    if (holds_lock(entry->path() / "fdinfo", file, range)) return pid;
  }
  return std::nullopt;
}

}  // namespace stfs
