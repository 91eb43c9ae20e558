// Tells for which program's request a thread works, so that the log can name the program.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace stfs {

/// Applies to the thread that makes it, from construction to destruction. Of nested ones the innermost
/// counts.
class Requester {
 public:
  /// @param uid     the program's user. Nothing: the kernel itself asks.
  /// @param thread  the program's thread. 0 if it lives in a pid namespace that this process can't see.
  Requester(std::optional<uid_t> uid, pid_t thread)
      : uid_(uid), thread_(thread), outer_(std::exchange(present_, this)) {}
  ~Requester() { present_ = outer_; }
  Requester(const Requester&) = delete;
  Requester& operator=(const Requester&) = delete;

  /// Null on a thread that serves no request.
  static Requester* present() { return present_; }

  [[nodiscard]] std::optional<uid_t> uid() const { return uid_; }
  [[nodiscard]] pid_t thread() const { return thread_; }
  /// Whether a warning or an error that was logged for this request contains the text.
  [[nodiscard]] bool has_logged(std::string_view text) const {
    return logged_.find(text) != std::string::npos;
  }
  void note_logged(std::string_view line) { logged_.append(line).append("\n"); }

 private:
  inline static thread_local Requester* present_ = nullptr;
  const std::optional<uid_t> uid_;
  const pid_t thread_;
  std::string logged_;
  Requester* const outer_;
};

}  // namespace stfs
