// The allowed effects of a store's fault on a commit.
#include <fmt/format.h>

#include <cerrno>

#include "tests/simulation/truth.h"

namespace stfs::test {

bool Truth::takes_faults() const {
  // The result of a release is not reported. A synchronous write reports only that it failed.
  return frames_.empty() || !(frames_.back().is_release || frames_.back().is_synchronous);
}

void Truth::note_fault(const SeamCall& call, int errno_value) {
  has_met_fault_ = true;
  if (frames_.empty()) return;
  frames_.back().fault = errno_value;
  frames_.back().failed = call;
}

void Truth::note_recovery() {
  if (stop_ && !stop_->is_for_good) stop_->may_be_over = true;
}

const Truth::Stop* Truth::stop_of(const Frame& frame) const {
  const bool is_stopped =
      stop_ && !frame.commits.empty() && frame.commits.front()->target.edition == stop_->edition;
  return is_stopped ? &*stop_ : nullptr;
}

Truth::Dues Truth::dues_of(const Frame& frame) const {
  Dues due = {frame.due};
  if (frame.commits.empty()) return due;
  const Stop* stop = stop_of(frame);
  // The mount may notice first that the archive was replaced.
  if (stop != nullptr && !stop->may_be_over && frame.due != ESTALE) due.clear();
  if (stop != nullptr) due.insert(stop->errno_value);
  // Until the stopped commit is finished, its journal hides the bytes that others wrote to its blocks. A
  // transaction that was staged in that time has not seen those bytes.
  if (stop != nullptr && frame.commits.front()->kind == FileKind::Grouped) due.insert(ESTALE);
  if (frame.fault != 0) due.insert(frame.fault);
  for (const PendingPointer& pending : frame.commits) {
    if (pending->spoiled != 0) due.insert(pending->spoiled);
  }
  return due;
}

void Truth::end_fault(const Frame& frame, const std::string& what) {
  const Contents found = recovered_();
  bool is_old = true;
  bool is_new = true;
  for (const PendingPointer& pending : frame.commits) {
    is_old = is_old && found.at(pending->target.tensor) == pending->committed();
    is_new = is_new && found.at(pending->target.tensor) == pending->over(pending->committed());
  }
  expect(is_old || is_new, "TORN: " + what + " that has met a fault is there by half");
  const bool is_of_disk = frame.failed.kind == FileCall::Sync || frame.failed.kind == FileCall::Publish ||
                          frame.failed.kind == FileCall::SyncDirectory;
  for (const PendingPointer& pending : frame.commits) {
    Buffer& now = pending->target.edition->committed.at(pending->target.tensor);
    if (is_old) {
      pending->was_refused = true;
      if (is_of_disk) pending->spoiled = frame.fault;
      continue;
    }
    also_.push_back({pending->target, now});
    also_.push_back(
        {{.edition = pending->target.edition, .tensor = pending->target.tensor, .transaction = {}}, now});
    now = pending->over(now);
    pending->fail();
  }
  if (!is_old) {
    stop_ = Stop{.edition = frame.commits.front()->target.edition, .errno_value = frame.fault};
  } else if (frame.failed.kind == FileCall::Sync && frame.failed.role == FileRole::Archive) {
    // Bytes that other programs wrote before may be lost.
    stop_ = Stop{
        .edition = frame.commits.front()->target.edition, .errno_value = frame.fault, .is_for_good = true};
  }
}

}  // namespace stfs::test
