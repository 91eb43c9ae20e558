// The state of pending content.
#include "fs/open_file.h"

#include <algorithm>

namespace stfs {

bool PendingContent::is_written_by(Owner owner) const {
  return writers.empty() || std::ranges::find(writers, owner) != writers.end();
}

void PendingContent::note_writer(Owner owner) {
  if (owner != 0 && std::ranges::find(writers, owner) == writers.end()) writers.push_back(owner);
}

void PendingContent::fail(Error why) {
  staging.forget();
  failure = std::move(why);
}

}  // namespace stfs
