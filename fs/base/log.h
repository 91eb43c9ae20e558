// The log of the driver. Lines go to stderr while the process is in the foreground, and to syslog once it
// runs in the background.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace stfs::log {

enum class Level { Info, Warning, Error };

/// Sends all later lines to syslog, because a process in the background has no stderr. Call once, before the
/// first thread starts.
void to_syslog();

/// Writes one line. Any thread may call. Control characters are escaped, because names come from untrusted
/// files.
void write(Level level, std::string_view line);

template <class... Args>
void info(fmt::format_string<Args...> text, Args&&... args) {
  write(Level::Info, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void warning(fmt::format_string<Args...> text, Args&&... args) {
  write(Level::Warning, fmt::format(text, std::forward<Args>(args)...));
}
template <class... Args>
void error(fmt::format_string<Args...> text, Args&&... args) {
  write(Level::Error, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace stfs::log
