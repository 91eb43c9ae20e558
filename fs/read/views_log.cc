#include "fs/read/views_log.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "fs/base/log.h"

namespace stfs {
namespace {

tl::unexpected<Error> no_such_log() {
  return fail(ErrorCode::NotFound, ENOENT, "this state of the log is gone: open it again");
}

}  // namespace

Result<Ino> LogViews::make() {
  File made{.lines = log::recent_lines(), .reader = requesting_user()};
  auto share = counts_.take(made.reader);
  if (!share) return pass_on(std::move(share));
  made.share = std::move(*share);
  for (const auto& line : made.lines) made.size_bytes += line->size();
  const std::scoped_lock lock(mutex_);
  files_.emplace(next_, std::move(made));
  return next_++;
}

bool LogViews::exists(Ino ino) const {
  const std::scoped_lock lock(mutex_);
  return files_.contains(ino);
}

void LogViews::forget(Ino ino, std::uint64_t lookups) {
  const std::scoped_lock lock(mutex_);
  const auto found = files_.find(ino);
  if (found == files_.end()) return;
  found->second.lookups -= std::min(found->second.lookups, lookups);
  if (found->second.lookups == 0) files_.erase(found);
}

Result<std::uint64_t> LogViews::size_bytes(Ino ino) const {
  const std::scoped_lock lock(mutex_);
  const auto found = files_.find(ino);
  return found == files_.end() ? Result<std::uint64_t>(no_such_log()) : found->second.size_bytes;
}

uid_t LogViews::reader(Ino ino) const {
  const std::scoped_lock lock(mutex_);
  const auto found = files_.find(ino);
  return found == files_.end() ? ::geteuid() : found->second.reader;
}

Result<Bytes> LogViews::read(Ino ino, ByteRange range) const {
  const std::scoped_lock lock(mutex_);
  const auto found = files_.find(ino);
  if (found == files_.end()) return no_such_log();
  std::vector<std::byte> bytes;
  std::uint64_t begin = 0;
  for (const auto& line : found->second.lines) {
    const ByteRange part = range.intersection({begin, line->size()});
    const auto text = std::as_bytes(std::span(*line));
    const auto* const from = text.data() + (part.empty() ? 0 : part.offset - begin);
    bytes.insert(bytes.end(), from, from + part.size_bytes);
    begin += line->size();
  }
  return Bytes(std::move(bytes));
}

}  // namespace stfs
