// The last lines of the log, for `.safetensors/log` and for `last_error` in stats.json.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mutex.h"

namespace stfs {

/// Any thread may call. No other lock is taken while its mutex is held.
class RecentLines {
 public:
  static constexpr std::size_t kMost = 1000;
  static constexpr std::size_t kMostLineBytes = 2048;  // a longer line is cut

  using Text = std::vector<std::shared_ptr<const std::string>>;  // lines with their ends

  /// @param is_problem  true if the line is a warning or an error.
  /// @param cause       the user whose request caused the line, if a request did.
  void add(std::string_view line, bool is_problem, std::optional<uid_t> cause);
  /// @param user  nothing: all lines. Otherwise only the lines that this user's requests caused, because
  ///              other lines may contain names that the user may not read.
  [[nodiscard]] Text shown_to(std::optional<uid_t> user) const;
  /// The newest warning or error, without its end. Empty if there is none.
  [[nodiscard]] std::string last_problem(std::optional<uid_t> user) const;

 private:
  struct Line {
    std::shared_ptr<const std::string> text;
    bool is_problem = false;
    std::optional<uid_t> cause;
  };

  mutable Mutex mutex_;
  std::deque<Line> lines_ GUARDED_BY(mutex_);
};

}  // namespace stfs
