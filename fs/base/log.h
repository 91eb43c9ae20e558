// What the driver has to say while it runs: on stderr in the foreground, to syslog behind it.
#pragma once

#include <fmt/format.h>

#include <string_view>

namespace stfs::log {

enum class Level { Info, Warning, Error };

/// Call once, before the first thread: from then on lines go to syslog, since stderr is gone.
void to_syslog();

/// One line, any thread; control characters are escaped, for names come from untrusted files.
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
