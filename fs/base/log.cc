// Writes each line of the log with a single call.
#include "fs/base/log.h"

#include <syslog.h>
#include <unistd.h>

#include <atomic>
#include <string>

namespace stfs::log {
namespace {

std::atomic<bool> is_in_background = false;

std::string printable(std::string_view line) {
  std::string text;
  text.reserve(line.size() + 1);
  for (const char character : line) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte == 0x7f) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += character;
    }
  }
  return text;
}

int syslog_priority(Level level) {
  switch (level) {
    case Level::Info: return LOG_INFO;
    case Level::Warning: return LOG_WARNING;
    case Level::Error: return LOG_ERR;
  }
  return LOG_ERR;
}

}  // namespace

void to_syslog() {
  openlog("safetensorsfs", LOG_PID, LOG_DAEMON);
  is_in_background = true;
}

void write(Level level, std::string_view line) {
  std::string text = printable(line);
  if (is_in_background) {
    syslog(syslog_priority(level), "%s", text.c_str());
    return;
  }
  text = "safetensorsfs: " + text + "\n";
  // One call of write(2), so that lines of several threads never mix. A failure of stderr cannot be reported.
  [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace stfs::log
