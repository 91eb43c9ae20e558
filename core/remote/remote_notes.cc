#include "core/remote/remote_notes.h"

#include <algorithm>
#include <utility>

#include "core/base/mutex.h"

namespace stfs {
namespace {

struct RemoteNotes {
  Mutex mutex;
  std::vector<std::string> texts GUARDED_BY(mutex);
};

RemoteNotes& remote_notes() {
  static RemoteNotes kept;
  return kept;
}

}  // namespace

void add_remote_note(std::string note) {
  constexpr std::size_t kMost = 100;
  RemoteNotes& kept = remote_notes();
  const MutexLock lock(kept.mutex);
  if (kept.texts.size() < kMost && std::ranges::find(kept.texts, note) == kept.texts.end())
    kept.texts.push_back(std::move(note));
}

std::vector<std::string> take_remote_notes() {
  RemoteNotes& kept = remote_notes();
  const MutexLock lock(kept.mutex);
  return std::exchange(kept.texts, {});
}

}  // namespace stfs
