#include "fs/read/text_views.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "core/base/mutex.h"

namespace stfs {
namespace {

tl::unexpected<Error> no_such_text() {
  return fail(ErrorCode::NotFound, ENOENT, "this text is gone: open the file again");
}

}  // namespace

Result<Ino> TextViews::make(Text text, std::function<void()> on_read) {
  File made{.text = std::move(text), .on_read = std::move(on_read), .user = requesting_user()};
  auto share = counts_.take(made.user);
  RETURN_IF_ERROR(share);
  made.share = std::move(*share);
  for (const auto& part : made.text) made.size_bytes += part->size();
  const MutexLock lock(mutex_);
  files_.emplace(next_, std::move(made));
  return next_++;
}

bool TextViews::exists(Ino ino) const {
  const MutexLock lock(mutex_);
  return files_.contains(ino);
}

void TextViews::forget(Ino ino, std::uint64_t lookups) {
  const MutexLock lock(mutex_);
  const auto found = files_.find(ino);
  if (found == files_.end()) return;
  found->second.lookups -= std::min(found->second.lookups, lookups);
  if (found->second.lookups == 0) files_.erase(found);
}

Result<std::uint64_t> TextViews::size_bytes(Ino ino) const {
  const MutexLock lock(mutex_);
  const auto found = files_.find(ino);
  return found == files_.end() ? Result<std::uint64_t>(no_such_text()) : found->second.size_bytes;
}

uid_t TextViews::user(Ino ino) const {
  const MutexLock lock(mutex_);
  const auto found = files_.find(ino);
  return found == files_.end() ? ::geteuid() : found->second.user;
}

Result<Bytes> TextViews::read(Ino ino, ByteRange range) const {
  const MutexLock lock(mutex_);
  const auto found = files_.find(ino);
  if (found == files_.end()) return no_such_text();
  if (found->second.on_read) found->second.on_read();
  std::vector<std::byte> bytes;
  std::uint64_t begin = 0;
  for (const auto& part : found->second.text) {
    const ByteRange wanted = range.intersection({begin, part->size()});
    const auto text = std::as_bytes(std::span(*part));
    const auto* const from = text.data() + (wanted.empty() ? 0 : wanted.offset - begin);
    bytes.insert(bytes.end(), from, from + wanted.size_bytes);
    begin += part->size();
  }
  return Bytes(std::move(bytes));
}

}  // namespace stfs
