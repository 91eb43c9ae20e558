// Captures the output to descriptor 2 while the object lives.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

#include "tests/support/temporary_directory.h"

namespace stfs::test {

/// At most one object at a time. Catch2 reports assertions on stdout, so a test may check while it captures.
class CapturedStderr {
 public:
  CapturedStderr() : before_(::dup(STDERR_FILENO)) {
    const int file = ::open((directory_ / "stderr").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (before_ < 0 || file < 0 || ::dup2(file, STDERR_FILENO) < 0)
      throw std::runtime_error("capture stderr");
    ::close(file);
  }
  ~CapturedStderr() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }
  CapturedStderr(const CapturedStderr&) = delete;
  CapturedStderr& operator=(const CapturedStderr&) = delete;

  [[nodiscard]] std::string text() const { return content_of(directory_ / "stderr"); }
  [[nodiscard]] bool contains(std::string_view part) const { return text().find(part) != std::string::npos; }

 private:
  TemporaryDirectory directory_;
  int before_;
};

}  // namespace stfs::test
