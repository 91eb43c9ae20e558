#include "core/storage/readahead.h"

#include <algorithm>

#include "core/base/mutex.h"

namespace stfs {

ByteRange Readahead::after(ByteRange read) {
  const MutexLock lock(mutex_);
  Run& run = run_of(read);
  run.last_used = ++clock_;
  ++run.reads;
  if (read.end() <= run.end) return {};  // a repeated or late read
  run.read_bytes += read.size_bytes;
  run.end = read.end();
  // Reads that skip most bytes are not sequential, however close they are to each other.
  const bool is_dense = run.read_bytes >= (run.end - run.begin) / 2;
  if (!is_dense || run.reads < 2 || run.read_bytes < kBeginBytes) return {};
  const std::uint64_t from = std::max(run.fetched_end, run.end);
  if (from - run.end > kAheadBytes - kStepBytes) return {};
  run.fetched_end = from + kStepBytes;
  return {from, kStepBytes};
}

Readahead::Run& Readahead::run_of(ByteRange read) {
  const auto belongs = [&](const Run& run) {
    return run.reads != 0 && read.offset <= run.end + kSlackBytes && read.end() + kSlackBytes >= run.end;
  };
  if (const auto known = std::ranges::find_if(runs_, belongs); known != runs_.end()) return *known;
  Run& oldest = *std::ranges::min_element(runs_, {}, &Run::last_used);
  oldest = {.begin = read.offset, .end = read.offset};
  return oldest;
}

}  // namespace stfs
