// Remembers the archives of a directory whose headers were refused. Another user may put thousands of them,
// or thousands of names of one, into a mounted directory. No pass over it parses one of them again.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <compare>
#include <cstdint>
#include <set>

#include "core/base/error.h"

namespace stfs {

/// For one thread.
class RefusedHeaders {
 public:
  using Clock = std::chrono::steady_clock;
  /// The time that one pass spends on headers that it refuses. Other changes wait for the end of a pass.
  static constexpr std::chrono::seconds kMostInPass{1};
  /// The clock of a file system may give the same time to two changes in less than this.
  static constexpr std::chrono::seconds kSettled{2};

  /// Call at the beginning of each pass. Forgets the files that the last pass did not find.
  void begin_pass();
  /// Returns true if the file was refused, under any of its names, and has not changed since.
  [[nodiscard]] bool has(const struct stat& file);
  /// Notes the error of a model that could not be opened.
  /// @param spent  the time that it took.
  /// @param now    the time by the clock of files.
  void note(const struct stat& file, const Error& error, Clock::duration spent,
            std::chrono::system_clock::time_point now = std::chrono::system_clock::now());
  /// Returns true if this pass should end, and the rest should wait for the next one.
  [[nodiscard]] bool has_spent_all() const { return spent_ >= kMostInPass; }

 private:
  struct State {
    std::uint64_t device;
    std::uint64_t inode;
    std::int64_t size_bytes;
    std::int64_t modified_ns;  // since the epoch
    std::int64_t changed_ns;   // the same; no program can set this time
    auto operator<=>(const State&) const = default;
  };
  static State state_of(const struct stat& file);

  std::set<State> before_;  // refused in earlier passes
  std::set<State> now_;     // refused, or found again, in this pass
  std::set<State> fresh_;   // of now_: files that may change without another time
  Clock::duration spent_{};
};

}  // namespace stfs
