// The log of the driver. Lines go to stderr while the process is in the foreground, and to syslog once it
// runs in the background. If `-o log=` is given, they are also written to its file. The last lines are kept
// for `.safetensors/log`.
//
// A line from a thread that serves a request (fs/base/requester.h) begins with the name and the number of the
// process that sent the request. If a user's requests cause very many lines, only some of them are logged
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

/// Also appends all later lines to the file, each with its time. If the file fails, the failure is logged
/// once in the other places. Call before the first thread starts.
void to_file(std::unique_ptr<LogFile> file);

/// Writes one line. Any thread may call. Escapes the characters that core/base/printable.h escapes, because
/// names come from untrusted files.
void write(Level level, std::string_view line);

/// The lines that the user of the present request may read. The user of this process and root may read all
/// lines. Another user may read the lines that the user's own requests caused.
RecentLines::Text recent_lines();
/// The newest warning or error among these lines, with its time. Empty if there is none.
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
