// Parses lines "lock: 1: OFDLCK ADVISORY WRITE -1 MAJ:MIN:INODE FIRST LAST" of proc_pid_fdinfo(5).
#include "core/storage/lock_holder.h"

#include <fmt/format.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

namespace stfs {
namespace {

namespace fs = std::filesystem;

/// How well a lock fits the one that is looked for.
enum class Fit : std::uint8_t {
  None,
  Inode,  // of a file with this inode number: on btrfs the device differs from stat's
  File,   // of this file
};

Fit fit_of(const std::string& line, const FileIdentity& file, ByteRange range) {
  if (!line.starts_with("lock:")) return Fit::None;
  std::istringstream words(line);
  std::string skipped;
  std::string kind;
  std::string device_and_inode;
  std::string first;
  std::string last;
  words >> skipped >> skipped >> kind >> skipped >> skipped >> skipped >> device_and_inode >> first >> last;
  if (kind != "OFDLCK" || !device_and_inode.ends_with(fmt::format(":{}", file.inode))) return Fit::None;
  std::uint64_t from = 0;
  std::uint64_t to = std::numeric_limits<std::uint64_t>::max();
  std::from_chars(first.data(), first.data() + first.size(), from);
  if (last != "EOF") std::from_chars(last.data(), last.data() + last.size(), to);
  if (from >= range.end() || range.offset > to) return Fit::None;
  const bool is_same = device_and_inode == fmt::format("{:02x}:{:02x}:{}", gnu_dev_major(file.device),
                                                       gnu_dev_minor(file.device), file.inode);
  return is_same ? Fit::File : Fit::Inode;
}

/// The best fit of a process's locks.
Fit fit_of(const fs::path& descriptors, const FileIdentity& file, ByteRange range) {
  Fit best = Fit::None;
  std::error_code failed;
  for (fs::directory_iterator entry(descriptors, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    std::ifstream lines(entry->path());
    for (std::string line; std::getline(lines, line);) best = std::max(best, fit_of(line, file, range));
  }
  return best;
}

}  // namespace

std::optional<pid_t> find_lock_holder(const FileIdentity& file, ByteRange range) {
  // Another file system may have the same inode number, and this process may hold a lock on it, too.
  std::pair<Fit, bool> best = {Fit::None, false};  // and whether it is another process
  std::optional<pid_t> holder;
  std::error_code failed;
  for (fs::directory_iterator entry("/proc", failed), end; !failed && entry != end; entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    pid_t pid = 0;
    const auto [parsed, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc{} || parsed != name.data() + name.size()) continue;
    const std::pair fit(fit_of(entry->path() / "fdinfo", file, range), pid != ::getpid());
    if (fit.first == Fit::None || fit <= best) continue;
    best = fit;
    holder = pid;
  }
  return holder;
}

}  // namespace stfs
