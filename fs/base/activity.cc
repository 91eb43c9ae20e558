#include "fs/base/activity.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/printable.h"
#include "core/format/json_string.h"
#include "fs/base/log.h"

namespace stfs {
namespace {

constexpr std::array<std::string_view, kRequestKinds> kNames = {
    "lookup", "getattr", "setattr", "access", "readdir", "open",  "read",   "write", "flush",
    "fsync",  "release", "xattr",   "mkdir",  "unlink",  "rmdir", "rename", "statfs"};

std::uint64_t total(const Activity::Counts& counts) {
  return std::accumulate(counts.requests.begin(), counts.requests.end(), std::uint64_t{0});
}

}  // namespace

Activity::Counts Activity::counts() const {
  Counts counts;
  for (std::size_t kind = 0; kind < kRequestKinds; ++kind) counts.requests[kind] = requests_[kind];
  counts.bytes_read = bytes_read_;
  counts.bytes_written = bytes_written_;
  counts.commits = commits_;
  counts.refused_commits = refused_commits_;
  counts.errors = errors_;
  counts.replacements = replacements_;
  return counts;
}

void Activity::set_problem(std::string why) {
  const MutexLock lock(mutex_);
  problem_ = std::move(why);
}

Activity::Report Activity::report(const State& state) const {
  const MutexLock lock(mutex_);
  const Counts now = counts();
  const Time now_at = std::chrono::steady_clock::now();
  const auto seconds_since = [&](Time then) { return std::chrono::duration<double>(now_at - then).count(); };
  constexpr double kShortestSeconds = 1e-6;
  const double elapsed = std::max(seconds_since(last_at_), kShortestSeconds);
  const auto rate = [&](std::uint64_t before, std::uint64_t after) {
    return static_cast<double>(after - before) / elapsed;
  };
  std::string text = fmt::format(
      "{{\n  \"uptime_seconds\": {:.3f},\n  \"tensors\": {},\n  \"open_slices\": {},\n  \"is_broken\": {},\n"
      "  \"requests\": {{",
      seconds_since(began_), state.tensors, state.open_slices, state.is_broken);
  for (std::size_t kind = 0; kind < kRequestKinds; ++kind) {
    text += fmt::format("{}\"{}\": {}", kind == 0 ? "" : ", ", kNames[kind], now.requests[kind]);
  }
  text += fmt::format(
      "}},\n  \"bytes_read\": {},\n  \"bytes_written\": {},\n  \"commits\": {},\n  \"refused_commits\": {},\n"
      "  \"errors\": {},\n  \"replacements\": {},\n  \"problem\": ",
      now.bytes_read, now.bytes_written, now.commits, now.refused_commits, now.errors, now.replacements);
  append_json_string(text, problem_);
  text += ",\n  \"last_error\": ";
  append_json_string(text, log::last_problem());
  text += ",\n  \"hot_tensors\": [";
  for (const auto& [name, share] : state.hot_tensors) {
    text += text.back() == '[' ? "{\"name\": " : ", {\"name\": ";
    append_json_string(text, name);
    text += fmt::format(", \"share_of_bytes\": {:.4f}}}", share);
  }
  text += "],\n";
  text += fmt::format(
      "  \"since_last_read\": {{\"seconds\": {:.6f}, \"requests_per_second\": {:.1f}, "
      "\"bytes_read_per_second\": {:.1f}, \"bytes_written_per_second\": {:.1f}, "
      "\"commits_per_second\": {:.2f}}}\n}}\n",
      elapsed, rate(total(last_), total(now)), rate(last_.bytes_read, now.bytes_read),
      rate(last_.bytes_written, now.bytes_written), rate(last_.commits, now.commits));
  return {printable_json(std::move(text)), now, now_at};
}

void Activity::note_report_read(const Report& report) {
  const MutexLock lock(mutex_);
  if (report.at < last_at_) return;  // a newer report was read since
  last_ = report.counts;
  last_at_ = report.at;
}

}  // namespace stfs
