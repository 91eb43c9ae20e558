// The journals that stay between small commits. After a failure this process gives a journal up: the next
// process that needs its bytes recovers it.
#include "fs/write/committer.h"

#include "fs/base/log.h"

namespace stfs {
namespace {

void warn_of(const Archive& archive, const Result<void>& done) {
  if (!done) log::warning("{}: {}", archive.path().string(), done.error().message);
}

}  // namespace

void Committer::settle_journal() {
  if (is_untidy_) warn_of(archive_, archive_.lane_journal().settle(archive_.durability(durability_)));
}

void Committer::keep_journal() {
  // After a failure each commit makes a journal of its own.
  if (archive_.lane_journal().is_wanted()) warn_of(archive_, archive_.lane_journal().prepare());
}

void Committer::retire_journal() {
  warn_of(archive_, archive_.lane_journal().retire(archive_.durability(durability_)));
}

std::vector<std::unique_ptr<File>> Committer::tidy() {
  settle_journal();
  is_untidy_ = false;
  return archive_.take_discarded();
}

}  // namespace stfs
