// Asks a file system that may never answer.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>

#include "core/base/deadline.h"
#include "core/base/unique_fd.h"

namespace stfs::tools {

/// A child process that runs a function. No signal can interrupt a process that waits for a request which a
/// stopped daemon has begun. So the child waits, and this process goes on. Start it on the only thread of the
/// process.
class Question {
 public:
  /// @param ask  its result is the answer.
  explicit Question(const std::function<std::string()>& ask);
  Question(Question&& other) noexcept;
  Question& operator=(Question&&) = delete;
  /// Kills a child that has not answered. The kernel ends the child when the daemon ends.
  ~Question();

  /// @return nothing if there is no answer until then. Ask again later.
  std::optional<std::string> answer_by(Deadline deadline);

 private:
  UniqueFd answer_;
  pid_t child_ = -1;
  std::string text_;
};

}  // namespace stfs::tools
