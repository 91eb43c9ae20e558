#include "tests/support/faulty_storage.h"

namespace stfs::test {
namespace {

bool changes_something(FileCall kind) {
  switch (kind) {
    case FileCall::CreateUnnamed:
    case FileCall::Publish:
    case FileCall::Remove:
    case FileCall::SyncDirectory:
    case FileCall::Write:
    case FileCall::Clone:
    case FileCall::Reserve:
    case FileCall::SetOwner:
    case FileCall::Resize:
    case FileCall::Punch:
    case FileCall::Create:
    case FileCall::Rename:
    case FileCall::SetMode:
    case FileCall::Sync: return true;
    default: return false;
  }
}

}  // namespace

void FaultPlan::set(const Fault& fault) {
  const std::scoped_lock lock(mutex_);
  fault_ = fault;
  calls_ = matching_calls_ = 0;
  failed_.reset();
  has_touched_archive_ = false;
}

void FaultPlan::tear_writes() {
  const std::scoped_lock lock(mutex_);
  fault_.cuts_short = true;
}

unsigned FaultPlan::calls() const {
  const std::scoped_lock lock(mutex_);
  return calls_;
}

std::optional<SeamCall> FaultPlan::failed_call() const {
  const std::scoped_lock lock(mutex_);
  return failed_;
}

std::optional<FileCall> FaultPlan::failed() const {
  const auto call = failed_call();
  return call ? std::optional(call->kind) : std::nullopt;
}

bool FaultPlan::has_touched_archive() const {
  const std::scoped_lock lock(mutex_);
  return has_touched_archive_;
}

bool FaultPlan::is_about(const SeamCall& call) const {
  if (call.kind == FileCall::Unlock) return false;
  if (fault_.kind) return *fault_.kind == call.kind;
  return !fault_.only_changes || changes_something(call.kind);
}

Verdict FaultPlan::before(const SeamCall& call) {
  const std::scoped_lock lock(mutex_);
  ++calls_;
  const bool is_hit =
      is_about(call) && fault_.nth != 0 &&
      (++matching_calls_ == fault_.nth || (fault_.is_for_good && matching_calls_ > fault_.nth));
  const bool is_write = call.kind == FileCall::Write || call.kind == FileCall::Clone;
  if (call.role == FileRole::Archive && is_write && (!is_hit || fault_.cuts_short))
    has_touched_archive_ = true;
  if (!is_hit) return {};
  if (!failed_) failed_ = call;
  return {.kind = fault_.cuts_short ? Verdict::Kind::CutShort : Verdict::Kind::Fail,
          .errno_value = fault_.errno_value};
}

}  // namespace stfs::test
