// Records which program's request a thread serves, so that the log can name the program, and the mount can
// check its rights.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "fs/base/maker.h"

namespace stfs {

/// Applies to the thread that constructs it, from construction to destruction. If several are nested, the
/// innermost applies.
class Requester {
 public:
  /// @param uid     the program's user. Nothing: the request is from the kernel.
  /// @param thread  the program's thread. 0 if it is in a pid namespace that this process can't see.
  /// @param caller  finds the program's user and groups. Empty: the program has no group.
  Requester(std::optional<uid_t> uid, pid_t thread, std::function<Maker()> caller = {})
      : uid_(uid), thread_(thread), caller_(std::move(caller)), outer_(std::exchange(present_, this)) {}
  ~Requester() { present_ = outer_; }
  Requester(const Requester&) = delete;
  Requester& operator=(const Requester&) = delete;

  /// Null on a thread that serves no request.
  static Requester* present() { return present_; }

  [[nodiscard]] std::optional<uid_t> uid() const { return uid_; }
  [[nodiscard]] pid_t thread() const { return thread_; }
  /// The program's user and groups. Root for a request of the kernel. Call before the reply to the request.
  [[nodiscard]] Maker caller() const {
    constexpr gid_t kNoGroup = ~gid_t{0};
    return caller_ ? caller_() : Maker{.uid = uid_.value_or(0), .gid = kNoGroup, .other_groups = {}};
  }
  /// True if a warning or an error that was logged for this request contains the text.
  [[nodiscard]] bool has_logged(std::string_view text) const {
    return logged_.find(text) != std::string::npos;
  }
  void note_logged(std::string_view line) { logged_.append(line).append("\n"); }

 private:
  inline static thread_local Requester* present_ = nullptr;
  const std::optional<uid_t> uid_;
  const pid_t thread_;
  const std::function<Maker()> caller_;
  std::string logged_;
  Requester* const outer_;
};

}  // namespace stfs
