// Parses lines "1: OFDLCK ADVISORY WRITE -1 MAJ:MIN:INODE FIRST LAST" of /proc/locks. proc_pid_fdinfo(5) has
// the same lines behind "lock:".
#include "core/storage/lock_holder.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <exception>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/storage/other_processes.h"
#include "core/storage/system_file.h"

namespace stfs {
namespace {

namespace fs = std::filesystem;

/// How well a lock matches the wanted one.
enum class Fit : std::uint8_t {
  None,
  Inode,  // its file has this inode number: on btrfs the device differs from stat's
  File,   // it is a lock on this file
};

constexpr std::chrono::seconds kPatience{1};

struct Wanted {
  FileIdentity file;
  ByteRange range;
  bool is_flock = false;
  Deadline deadline{};  // a user decides how many descriptors there are to look at
};

struct Line {
  Fit fit = Fit::None;
  pid_t pid = -1;  // -1: the lock of an open file description
};

/// @param line  of /proc/locks.
Line parse(const std::string& line, const Wanted& wanted) {
  std::istringstream words(line);
  std::string number;
  std::string kind;
  std::string skipped;
  std::string device_and_inode;
  std::string first;
  std::string last;
  Line found;
  words >> number >> kind;
  if (kind == "->") return {};  // a process that waits for the lock
  words >> skipped >> skipped >> found.pid >> device_and_inode >> first >> last;
  const bool is_kind = wanted.is_flock ? kind == "FLOCK" : kind == "OFDLCK" || kind == "POSIX";
  if (!is_kind || !device_and_inode.ends_with(fmt::format(":{}", wanted.file.inode))) return {};
  std::uint64_t from = 0;
  std::uint64_t to = std::numeric_limits<std::uint64_t>::max();
  std::from_chars(first.data(), first.data() + first.size(), from);
  if (last != "EOF") std::from_chars(last.data(), last.data() + last.size(), to);
  if (from >= wanted.range.end() || wanted.range.offset > to) return {};
  const std::uint64_t device = wanted.file.device;
  const bool is_same = device_and_inode == fmt::format("{:02x}:{:02x}:{}", device >> 32U,
                                                       device & 0xffffffffU, wanted.file.inode);
  found.fit = is_same ? Fit::File : Fit::Inode;
  return found;
}

bool is_over(const Wanted& wanted) {
  return time_left(wanted.deadline) == std::chrono::milliseconds::zero();
}

/// Returns the best match among a process's locks, and the number of locks that match so well.
std::pair<Fit, unsigned> locks_of(pid_t process, const Wanted& wanted) {
  std::pair<Fit, unsigned> locks = {Fit::None, 0};
  any_descriptor(process, [&](const std::string& descriptor, const KnownFile& file) {
    if (is_over(wanted)) return true;
    if (file.inode != wanted.file.inode || file.device != wanted.file.device) return false;
    std::ifstream lines(fmt::format("/proc/{}/fdinfo/{}", process, descriptor));
    for (std::string line; std::getline(lines, line);) {
      constexpr std::string_view kStart = "lock:";
      if (!line.starts_with(kStart)) continue;
      const Fit fit = parse(line.substr(kStart.size()), wanted).fit;
      if (fit == Fit::None || fit < locks.first) continue;
      if (fit > locks.first) locks = {fit, 0};
      ++locks.second;
    }
    return false;
  });
  return locks;
}

/// Returns a process that /proc/locks names, or the number of locks that it lists. It names no process for
/// locks of open file descriptions.
/// @param least  how well a lock must match.
std::pair<std::optional<pid_t>, unsigned> look_at_all_locks(const Wanted& wanted, Fit least) {
  std::pair<std::optional<pid_t>, unsigned> found = {std::nullopt, 0};
  std::ifstream lines("/proc/locks");
  for (std::string line; std::getline(lines, line);) {
    const Line lock = parse(line, wanted);
    if (lock.fit < least) continue;
    ++found.second;
    if (lock.pid > 0 && lock.pid != ::getpid()) found.first = lock.pid;
  }
  return found;
}

/// @param is_unseen  set if there is a lock that no process seen here holds.
std::optional<pid_t> look_for_holder(const Wanted& wanted, bool& is_unseen) {
  // A file with the same inode number may exist on another file system, and this process may hold a lock on
  // it.
  std::tuple<Fit, bool> best = {Fit::None, false};  // its fit, and whether it is another process
  std::optional<pid_t> holder;
  unsigned own = 0;
  any_process([&](pid_t process) {
    const auto [fit, count] = locks_of(process, wanted);
    if (process == ::getpid()) own = count;
    const std::tuple is(fit, process != ::getpid());
    if (fit != Fit::None && is > best) {
      best = is;
      holder = process;
    }
    return best == std::tuple(Fit::File, true) || is_over(wanted);
  });
  if (holder && *holder != ::getpid()) return holder;
  // The holder may be another user's process, whose descriptors can't be read.
  const auto [named, count] = look_at_all_locks(wanted, std::max(Fit::Inode, std::get<Fit>(best)));
  if (named) return named;
  is_unseen = count > own;
  return is_unseen ? std::nullopt : holder;
}

std::optional<pid_t> search(const Wanted& wanted) {
  constexpr int kAttempts = 3;  // locks begin and end while /proc is read
  for (int attempt = 1;; ++attempt) {
    bool is_unseen = false;
    const auto holder = look_for_holder(wanted, is_unseen);
    if (!is_unseen || attempt == kAttempts || is_over(wanted)) return holder;
  }
}

/// Searches on another thread, because a user can also lock a directory of /proc for ever.
std::optional<pid_t> find_holder(Wanted wanted) {
  constexpr int kMostThreads = 8;
  static std::atomic<int> threads = 0;
  struct Answer {
    Mutex mutex;
    Condition arrives;
    bool is_there GUARDED_BY(mutex) = false;
    std::optional<pid_t> holder GUARDED_BY(mutex);
  };
  wanted.deadline = deadline_in(kPatience);
  const auto answer = std::make_shared<Answer>();
  if (++threads > kMostThreads) {
    --threads;
    return std::nullopt;
  }
  try {
    std::thread([answer, wanted] {
      std::optional<pid_t> holder;
      try {
        holder = search(wanted);
      } catch (const std::exception&) {  // no memory: the holder stays unknown
      }
      --threads;
      const MutexLock lock(answer->mutex);
      answer->is_there = true;
      answer->holder = holder;
      answer->arrives.notify_one();
    }).detach();
  } catch (const std::exception&) {
    --threads;
    return std::nullopt;
  }
  const MutexLock lock(answer->mutex);
  // A search that can read on ends at its deadline, so only a blocked one takes longer.
  answer->arrives.wait_for(answer->mutex, 2 * kPatience,
                           [&]() NO_THREAD_SAFETY_ANALYSIS { return answer->is_there; });
  return answer->holder;
}

}  // namespace

std::optional<pid_t> find_lock_holder(const FileIdentity& file, ByteRange range) {
  return find_holder({.file = file, .range = range});
}

std::optional<pid_t> find_flock_holder(const fs::path& path) {
  const auto status = system_status_of_name(path);
  if (!status) return std::nullopt;
  const FileIdentity& file = status->identity;
  constexpr ByteRange kWhole = {0, std::numeric_limits<std::uint64_t>::max()};
  return find_holder({.file = file, .range = kWhole, .is_flock = true});
}

std::string holder_text(std::optional<pid_t> holder) {
  if (!holder) return "another process";
  const fs::path process = fmt::format("/proc/{}", *holder);
  struct stat status {};
  const bool is_there = ::stat(process.c_str(), &status) == 0;
  std::string name = comm_of(*holder);
  std::ranges::replace_if(
      name, [](char c) { return c < ' ' || c > '~'; }, '?');
  return fmt::format("process {}{}{}", *holder, name.empty() ? "" : fmt::format(" ({})", name),
                     is_there ? fmt::format(" of user {}", status.st_uid) : "");
}

}  // namespace stfs
