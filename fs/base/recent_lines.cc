#include "fs/base/recent_lines.h"

#include <algorithm>
#include <ranges>

#include "core/base/mutex.h"
#include "core/base/utf8.h"

namespace stfs {

void RecentLines::add(std::string_view line, bool is_problem, std::optional<uid_t> cause) {
  constexpr std::string_view kCut = " ...";
  std::string text(line);
  if (text.size() >= kMostLineBytes) {
    text.resize(kMostLineBytes - kCut.size() - 1);
    text.resize(valid_utf8_prefix(text));
    text += kCut;
  }
  text += '\n';
  auto kept = std::make_shared<const std::string>(std::move(text));
  const MutexLock lock(mutex_);
  lines_.push_back({std::move(kept), is_problem, cause});
  if (lines_.size() > kMost) lines_.pop_front();
}

RecentLines::Text RecentLines::shown_to(std::optional<uid_t> user) const {
  Text found;
  const MutexLock lock(mutex_);
  for (const Line& line : lines_) {
    if (!user || line.cause == user) found.push_back(line.text);
  }
  return found;
}

std::string RecentLines::last_problem(std::optional<uid_t> user) const {
  const MutexLock lock(mutex_);
  const auto is_its = [&](const Line& line) { return line.is_problem && (!user || line.cause == user); };
  const auto last = std::find_if(lines_.rbegin(), lines_.rend(), is_its);
  return last == lines_.rend() ? std::string() : last->text->substr(0, last->text->size() - 1);
}

}  // namespace stfs
