// Writes each line of the log with a single call.
#include "fs/base/log.h"

#include <syslog.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/printable.h"
#include "core/base/wall_clock.h"
#include "fs/base/line_budget.h"
#include "fs/base/process.h"
#include "fs/base/requester.h"

namespace stfs::log {
namespace {

std::atomic<bool> is_in_background = false;

/// This object is never destroyed, because threads may log until the process ends.
struct Places {
  RecentLines recent;
  LineBudget budget;
  Mutex file_mutex;  // no other lock is taken with it held
  std::unique_ptr<LogFile> file GUARDED_BY(file_mutex);
  bool file_fails GUARDED_BY(file_mutex) = false;
};

Places& places() {
  static Places& only = *new Places;
  return only;
}

int syslog_priority(Level level) {
  switch (level) {
    case Level::Info: return LOG_INFO;
    case Level::Warning: return LOG_WARNING;
    case Level::Error: return LOG_ERR;
  }
  return LOG_ERR;
}

/// "2026-11-27T09:05:00.123Z".
std::string time_now() {
  constexpr std::int64_t kPerSecond = 1'000'000'000;
  constexpr std::int64_t kPerMillisecond = 1'000'000;
  const std::int64_t now_ns = wall_clock_ns(Clock::Fine);
  const std::time_t seconds = now_ns / kPerSecond;
  struct tm utc {};
  ::gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, now_ns % kPerSecond / kPerMillisecond);
}

/// "cp[4711]: ", or less if less is known.
std::string process_prefix(const Requester& requester) {
  const pid_t process = process_of(requester.thread());
  if (process <= 0) return requester.uid() ? fmt::format("user {}: ", *requester.uid()) : "";
  std::ifstream file(fmt::format("/proc/{}/comm", process));
  std::string name;
  std::getline(file, name);
  return name.empty() ? fmt::format("process {}: ", process)
                      : fmt::format("{}[{}]: ", printable(name), process);
}

void put_to_usual_place(Level level, const std::string& text) {
  if (is_in_background) {
    syslog(syslog_priority(level), "%s", text.c_str());
    return;
  }
  const std::string line = "safetensorsfs: " + text + "\n";
  // One call of write(2), so that lines of several threads never mix. A failure of stderr cannot be reported.
  [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, line.data(), line.size());
}

/// @return a message about the file, if it has just begun to fail.
std::optional<std::string> put_to_file(const std::string& text) {
  Places& all = places();
  const MutexLock lock(all.file_mutex);
  if (!all.file) return std::nullopt;
  const auto put = all.file->append(text);
  const bool has_failed = std::exchange(all.file_fails, !put);
  if (put || has_failed) return std::nullopt;
  return fmt::format("{}: lines may be missing in it until it can be written again", put.error().message);
}

void put(Level level, const std::string& text, std::optional<uid_t> cause) {
  const std::string dated = fmt::format("{} {}", time_now(), text);
  put_to_usual_place(level, text);
  places().recent.add(dated, level != Level::Info, cause);
  if (const auto failing = put_to_file(dated)) {
    put_to_usual_place(Level::Error, *failing);
    places().recent.add(fmt::format("{} {}", time_now(), *failing), true, std::nullopt);
  }
}

std::optional<uid_t> reader() {
  const Requester* const requester = Requester::present();
  if (requester == nullptr || !requester->uid()) return std::nullopt;
  const uid_t user = *requester->uid();
  return user == 0 || user == ::geteuid() ? std::nullopt : std::optional(user);
}

}  // namespace

void to_syslog() {
  openlog("safetensorsfs", LOG_PID, LOG_DAEMON);
  is_in_background = true;
}

void to_file(std::unique_ptr<LogFile> file) {
  const MutexLock lock(places().file_mutex);
  places().file = std::move(file);
}

void write(Level level, std::string_view line) {
  Requester* const requester = Requester::present();
  if (requester == nullptr) return put(level, printable(line), std::nullopt);
  if (level != Level::Info) requester->note_logged(line);
  const std::optional<uid_t> cause = requester->uid();
  const auto left_out = places().budget.take(cause.value_or(0), std::chrono::steady_clock::now());
  if (!left_out) return;
  if (*left_out > 0) {
    put(Level::Warning,
        fmt::format("{} lines about requests of user {} were left out: there were too many", *left_out,
                    cause.value_or(0)),
        cause);
  }
  put(level, process_prefix(*requester) + printable(line), cause);
}

RecentLines::Text recent_lines() {
  return places().recent.shown_to(reader());
}

std::string last_problem() {
  return places().recent.last_problem(reader());
}

}  // namespace stfs::log
