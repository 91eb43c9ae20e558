#include <fmt/format.h>

#include <utility>

#include "core/base/mutex.h"
#include "core/format/json_string.h"
#include "fs/base/log.h"
#include "fs/base/process.h"
#include "fs/model/mounted_model.h"
#include "fs/write/checkpoint.h"

namespace stfs {
namespace {

/// Returns a checkpoint that a rename commits; null for other bytes.
Checkpoint* waiting_checkpoint(const PendingFile& content) {
  Checkpoint* const saved = content.checkpoint();
  return saved != nullptr && saved->waits_for_name() ? saved : nullptr;
}

/// Returns what happens to bytes that are not committed.
std::string_view fate_of(const PendingFile& content) {
  const NewTensor* const made = content.new_tensor();
  return made != nullptr && made->is_scratch() ? "stays a scratch file" : "dropped";
}

Content content_of(const PendingFile& content) {
  if (!content.is_dirty()) return Content::Clean;
  return content.is_whole() ? Content::Whole : Content::Cut;
}

}  // namespace

CloseFacts MountedModel::facts_of_close(const OpenFile& file, Owner owner, pid_t closer) const {
  const PendingFile& content = *file.content;
  CloseFacts facts{.content = content_of(content), .kind = file.kind};
  if (facts.content == Content::Clean) return facts;
  note_closer(facts, content.writers, file, owner, closer,
              [&](pid_t process) { return open_files_.is_open_elsewhere(content, process); });
  return facts;
}

Result<Stale> MountedModel::flush(OpenFile& file, Owner owner, pid_t closer) {
  PendingFile& content = *file.content;
  const MutexLock lock(content.mutex);
  // A shell closes a copy of the descriptor before it writes the first byte.
  if (file.kind == FileKind::Isolated && !content.writers.empty() &&
      file.opener_process == process_of(closer))
    content.is_closed = true;
  if (file.opener_process == process_of(closer)) file.opener_has_flushed = true;
  if (content.failure) return tl::unexpected(*content.failure);
  adopt_form(content);
  // The rename has committed the checkpoint, but could not wait until the kernel had forgotten the old
  // content.
  const Checkpoint* const saved = waiting_checkpoint(content);
  if (saved != nullptr && saved->is_committed()) return stale(file.ino, Stale::What::Content);
  const CloseFacts facts = facts_of_close(file, owner, closer);
  switch (decide(facts)) {
    case CloseDecision::Wait: return Stale{};
    case CloseDecision::Commit: return commit_if_dirty(file);
    case CloseDecision::Keep: content.accept(); return Stale{};
    case CloseDecision::RollBack:
      content.fail(killed(content, closer, facts.ending));
      log::warning("{}", content.failure->message);
      return stale(file.ino, is_in_page_cache(file) ? Stale::What::Content : Stale::What::Nothing);
    case CloseDecision::Doubt:
      content.fail(killed(content, closer, facts.ending));
      if (is_in_page_cache(file)) tell_stale_(stale(file.ino, Stale::What::Content));
      return tl::unexpected(*content.failure);
    case CloseDecision::Refuse:
      if (!content.writers.empty()) file.opener_has_closed = true;
      return tl::unexpected(wrong_size(content));
    case CloseDecision::Fail: break;
  }
  content.fail(wrong_size(content));
  if (content.patch() == nullptr)
    log::warning("{}: {}: {}", label_of(content), fate_of(content), content.failure->message);
  return tl::unexpected(*content.failure);
}

Error MountedModel::killed(const PendingFile& content, pid_t closer, Ending ending) const {
  const std::string_view what =
      ending == Ending::Killed ? "was killed by a signal before it closed"
      : ending == Ending::Hidden
          ? "closed or was killed; /proc does not show this mount which of the two (hidepid), so "
            "only fsync(2) commits"
          : "ended without a close, by an exit or by a signal; this mount may not read which of "
            "the two";
  return {ErrorCode::InvalidArgument, EIO,
          fmt::format("{}: rolled back: the writer (pid {}) {}", label_of(content), closer, what)};
}

Result<Stale> MountedModel::sync(OpenFile& file) {
  PendingFile& content = *file.content;
  const MutexLock lock(content.mutex);
  if (content.failure) return tl::unexpected(*content.failure);
  // fsync(2) does nothing in a transaction: the bytes become durable at the commit of the transaction.
  if (file.kind == FileKind::Grouped) return Stale{};
  const NewTensor* const made = content.new_tensor();
  if (made != nullptr && made->is_scratch() && !content.is_dirty()) {
    auto synced = made->scratch()->sync();
    return synced ? Result<Stale>(Stale{}) : pass_on(std::move(synced));
  }
  return waiting_checkpoint(content) != nullptr ? Result<Stale>(Stale{}) : commit_if_dirty(file);
}

Result<Stale> MountedModel::commit_if_dirty(const OpenFile& file) {
  PendingFile& content = *file.content;
  if (!content.is_dirty()) return Stale{};
  if (!content.is_whole()) return tl::unexpected(wrong_size(content));
  if (Checkpoint* const saved = waiting_checkpoint(content)) {
    saved->keep();
    content.accept();
    return Stale{};
  }
  auto committed = commit(file);
  if (!committed) {
    content.was_refused = true;
    // After a failure past the commit point no bytes are pending any more.
    log::error("{}: {}: {}", label_of(content), content.is_dirty() ? "not committed" : "not finished",
               committed.error().message);
  }
  return committed;
}

Result<Stale> MountedModel::commit(const OpenFile& file) {
  PendingFile& content = *file.content;
  if (content.patch() != nullptr) return commit_patch(file);
  if (content.new_tensor() != nullptr)
    return transactions_.is_hidden(file.ino) ? stage_npy(file) : commit_draft(file);
  auto found = commit_checkpoint(content);
  RETURN_IF_ERROR(found);
  for (const Stale& one : found->stale) tell_stale_(one);
  if (!found->entries.empty()) tell_outdated_({.stale = {}, .entries = std::move(found->entries)});
  // The caller waits until this notice is handled, and so until the earlier notices are handled.
  return stale(file.ino, Stale::What::Content);
}

Stale MountedModel::release(OpenFile* file) {
  PendingFile& content = *file->content;
  Stale left;
  {
    const MutexLock lock(content.mutex);
    const bool is_last = open_files_.leave(content);
    if (is_last && !content.failure) adopt_form(content);
    // A file that was made and never written becomes an empty tensor.
    NewTensor* const made = content.new_tensor();
    if (is_last && made != nullptr && !content.failure) made->note_end();
    if (is_last && file->kind != FileKind::Grouped) apply_form(content);
    ReleaseFacts facts{.content = content_of(content),
                       .kind = file->kind,
                       .is_last = is_last,
                       .has_unnamed_bytes = content.writers.has_unnamed(),
                       .was_refused = content.was_refused};
    if (facts.content == Content::Whole) facts.is_killed = content.writers.is_any_killed();
    ReleaseDecision decision = decide(facts);
    if (decision == ReleaseDecision::Commit) {
      if (auto committed = commit_if_dirty(*file)) left = *committed;
      facts.content = content_of(content);
      facts.was_refused = content.was_refused;
      decision = decide(facts);
    }
    if (decision == ReleaseDecision::Drop) {
      log::warning("{}: {}: {}", label_of(content), fate_of(content),
                   content.is_whole() ? "it could not be committed, or its writer was killed by a signal"
                                      : wrong_size(content).message);
      if (transactions_.is_hidden(file->ino)) {
        content.fail(
            {ErrorCode::WrongSize, EINVAL, label_of(content) + ": its NumPy file was not written whole"});
      } else {
        content.drop();
      }
      left = stale(file->ino, is_in_page_cache(*file) ? Stale::What::Content : Stale::What::Nothing);
    }
    if (is_last && content.failure && transactions_.is_hidden(file->ino)) stage_npy_failure(*file);
  }
  if (file->kind == FileKind::Grouped) transactions_.close(file->ino);
  if (file->kind == FileKind::New) end_draft(*file);
  open_files_.remove(file);
  return left;
}

void MountedModel::end() {
  abandon_pending();
  structure_.reclaim(true);
  structure_.close_gaps(true);
  committers_.end();
}

void MountedModel::abandon_pending() {
  if (const std::string names = scratch_names(); !names.empty()) {
    log::info("{}: scratch files stay in {}: {}", model().path().string(), scratch_.path().string(), names);
  }
  for (const std::string& name : transactions_.unfinished()) {
    log::warning("{}: transaction {} was not committed when the mount ended: rolled back",
                 model().path().string(), name);
  }
  open_files_.visit([this](const OpenFile& file) {
    if (!file.content->is_dirty()) return;
    log::warning("{}: {}: {} bytes were staged and not closed when the mount ended", label_of(*file.content),
                 fate_of(*file.content), file.content->size_bytes());
    file.content->drop();
  });
  for (const std::string& name : drafts_.kept()) {
    log::warning("{}: dropped: {} had not got a name that a checkpoint can have when the mount ended",
                 model().path().string(), in_quotes(name));
  }
}

Error MountedModel::wrong_size(const PendingFile& content) const {
  auto whole = content.check();
  if (whole) return {ErrorCode::WrongSize, EINVAL, "not written"};
  Error why = std::move(whole).error();
  if (content.patch() != nullptr && check_editable())
    why.message +=
        "; for another size, set user.safetensors.dtype or .shape while the file is open and "
        "nothing is written yet, or write a NumPy file to .safetensors/npy";
  return why;
}

ForeignChanges::Change MountedModel::check_for_change(std::uint32_t shard) {
  const bool follows = structure_.follows() && !model().is_of_base(shard);
  ForeignChanges::Change found = foreign_.check_for_change(shard, follows);
  if (!std::exchange(found.is_edited, false)) return found;
  const auto followed = structure_.follow();
  if (followed == StructureEdits::Followed::Lost) {
    const bool has_new_permissions = found.has_new_permissions;
    found = foreign_.check_for_change(shard, false);
    found.has_new_permissions = found.has_new_permissions || has_new_permissions;
    return found;
  }
  if (followed == StructureEdits::Followed::Shown) found.stale = stale_shard(shard, Stale::What::Content);
  // Followed::Nothing means that a request has followed the edit first. The next check finds its result.
  found.is_unsettled = followed != StructureEdits::Followed::Shown;
  return found;
}

bool MountedModel::check_permissions() {
  bool has_changed = false;
  const auto shards = static_cast<std::uint32_t>(model().shards().size());
  for (std::uint32_t shard = 0; shard < shards; ++shard)
    has_changed = foreign_.check_permissions(shard) || has_changed;
  return has_changed;
}

ForeignChanges::Change MountedModel::check_index() {
  ForeignChanges::Change found;
  if (!structure_.is_index_changed()) return found;
  const auto followed = structure_.follow();
  found.is_unsettled = followed == StructureEdits::Followed::Unsettled;
  found.is_outdated = !found.is_unsettled && structure_.is_index_changed();
  return found;
}

void MountedModel::tidy() {
  committers_.tidy();
  structure_.reclaim(false);
}

}  // namespace stfs
