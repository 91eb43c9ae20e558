#include "tools/cli/keyboard.h"

#include <poll.h>
#include <unistd.h>

namespace stfs::tools {

Keyboard::Keyboard() : is_terminal_(::tcgetattr(STDIN_FILENO, &before_) == 0) {
  if (!is_terminal_) return;
  struct termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
}

Keyboard::~Keyboard() {
  if (is_terminal_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

char Keyboard::wait(std::chrono::milliseconds time) const {
  struct pollfd event = {.fd = is_terminal_ ? STDIN_FILENO : -1, .events = POLLIN, .revents = 0};
  char key = 0;
  if (::poll(&event, 1, static_cast<int>(time.count())) > 0 && ::read(STDIN_FILENO, &key, 1) == 1) return key;
  return 0;
}

}  // namespace stfs::tools
