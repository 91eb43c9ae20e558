// The log of the driver. Lines go to stderr while the process is in the foreground, and to syslog once it
// runs in the background. They also go to the file of `-o log=`, if there is one, and the last of them are
// kept for `.safetensors/log`.
//
// A line that is written on a thread that serves a request (fs/base/requester.h) begins with the name and the
// number of the process that asked. A user whose requests cause very many lines gets only some of them
// (fs/base/line_budget.h).
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>

#include "fs/base/log_file.h"
#include "fs/base/recent_lines.h"

namespace stfs::log {

enum class Level { Info, Warning, Error };

/// Sends all later lines to syslog, because a process in the background has no stderr. Call once, before the
/// first thread starts.
void to_syslog();

/// Also appends all later lines to the file, each with its time. If the file fails, the other places say so
/// once. Call before the first thread starts.
void to_file(std::unique_ptr<LogFile> file);

/// Writes one line. Any thread may call. Escapes what core/base/printable.h escapes, because names come from
/// untrusted files.
void write(Level level, std::string_view line);

/// The lines that the user may read for whom the thread works: the user of this process and root may read all
/// of them, others those that their own requests caused.
RecentLines::Text recent_lines();
/// The newest warning or error among them, with its time. Empty: there is none.
std::string last_problem();

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
