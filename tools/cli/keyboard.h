// Single keys of a terminal, without Enter.
#pragma once

#include <termios.h>

#include <chrono>

namespace stfs::tools {

/// While it exists, keys reach the program at once and are not shown. Ctrl-C still raises SIGINT. Does
/// nothing if standard input is not a terminal.
class Keyboard {
 public:
  Keyboard();
  Keyboard(const Keyboard&) = delete;
  Keyboard& operator=(const Keyboard&) = delete;
  ~Keyboard();

  /// Waits for a key, at most so long. @return 0 without a key, and after a signal.
  [[nodiscard]] char wait(std::chrono::milliseconds time) const;

 private:
  struct termios before_ {};
  bool is_terminal_;  // behind before_, which its initializer fills in
};

}  // namespace stfs::tools
