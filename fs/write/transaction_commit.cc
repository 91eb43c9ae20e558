// Commits transactions (transaction_directory.h).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/format/json_string.h"
#include "fs/write/transaction_directory.h"

namespace stfs {
namespace {

/// The range from the first to the last of the bytes.
ByteRange hull(ByteRange one, ByteRange other) {
  if (one.empty()) return other;
  const std::uint64_t begin = std::min(one.offset, other.offset);
  return {begin, std::max(one.end(), other.end()) - begin};
}

/// Ends the contents that were committed.
void end_contents(const StagedChanges& staged) {
  for (const auto& [tensor, entry] : staged.tensors()) {
    if (!entry.content) continue;
    const std::scoped_lock lock(entry.content->mutex);
    entry.content->fail({ErrorCode::ArchiveChanged, ESTALE, "the transaction has been committed"});
  }
}

}  // namespace

bool TransactionDirectory::is_edit(const Begun& committing) const {
  return committing.staged.has_structure() ||
         std::ranges::any_of(committing.staged.tensors(), [this](const auto& entry) {
           const std::scoped_lock content_lock(entry.second.content->mutex);
           const TensorPatch* const patch = entry.second.content->patch();
           if (patch == nullptr || !snapshots_->model->ids().position(entry.first)) return false;
           return patch->is_copy() || patch->is_elsewhere();
         });
}

Result<void> TransactionDirectory::commit_patches(const Begun& committing, const Calls& calls) {
  std::vector<TensorId> changed;
  Committers::Shards shards;
  Contents contents;
  Committers::Patch patch;
  bool is_patch = true;
  for (const auto& [tensor, staged] : committing.staged.tensors()) {
    const std::scoped_lock content_lock(staged.content->mutex);
    if (staged.content->failure) return tl::unexpected(*staged.content->failure);
    if (!staged.content->is_dirty()) continue;
    changed.push_back(tensor);
    shards.insert(snapshots_->model->place(tensor).shard);
    contents.push_back(staged.content);
    const Staging* const stage = staged.content->staged();
    const ByteRange place = stage == nullptr ? ByteRange{} : stage->target();
    is_patch = is_patch && stage != nullptr;
    patch.place = hull(patch.place, place);
    patch.size_bytes += place.size_bytes;
  }
  const auto look = [&] { return check_for_conflicts(committing, changed); };
  const auto each = [&](const auto& act) {
    for (const auto& [tensor, staged] : committing.staged.tensors()) {
      const std::scoped_lock content_lock(staged.content->mutex);
      act(*staged.content);
    }
  };
  // This first check runs before the turn: it reads tensors while other commits run.
  RETURN_IF_ERROR(look());
  each([](PendingFile& content) { content.park(); });
  const auto attempt = [&](const TransactionGroup::OptionsOf& options_of) -> Result<void> {
    RETURN_IF_ERROR(look());
    const std::scoped_lock group_lock(committing.group->mutex);
    auto done = committing.group->commit(options_of, calls.lock_of);
    if (done) calls.note_committed(contents);
    return done;
  };
  const auto in_one = is_patch && shards.size() == 1 ? std::optional(patch) : std::nullopt;
  // The check is final while the archive's locks are held, because no other change can come before the
  // commit.
  auto committed = guard_memory([&] { return calls.in_turn(shards, in_one, look, attempt); });
  if (!committed) {
    const bool has_ended = committing.group->is_empty();
    each([&](PendingFile& content) {
      if (has_ended) {
        content.fail(committed.error());
      } else {
        content.unpark();
      }
    });
    if (has_ended) calls.note_shown(contents);
    return committed;
  }
  end_contents(committing.staged);
  return {};
}

Result<void> TransactionDirectory::commit_edit(const Begun& committing, const Calls& calls) {
  std::vector<TensorId> patched;
  for (const auto& [tensor, staged] : committing.staged.tensors()) {
    if (!staged.content) continue;
    const std::scoped_lock content_lock(staged.content->mutex);
    PendingFile& content = *staged.content;
    if (content.failure) return tl::unexpected(*content.failure);
    if (!content.is_dirty()) continue;
    if (!staged.is_new) patched.push_back(tensor);
    if (auto whole = content.check(); !whole)
      return tl::unexpected(std::move(whole).error().within("tensor " + in_quotes(staged.name)));
  }
  const TransactionEdit edit(committing.name, snapshots_, committing.staged,
                             [&] { return check_for_conflicts(committing, patched); });
  // This first check runs before the turn: it reads tensors while other commits run.
  RETURN_IF_ERROR(edit.check());
  auto committed = calls.edit(edit);
  if (committed) end_contents(committing.staged);
  return committed;
}

Result<void> TransactionDirectory::check_for_conflicts(const Begun& begun,
                                                       const std::vector<TensorId>& changed) const {
  for (const TensorId tensor : changed) {
    const TensorVersion& base = begun.staged.at(tensor)->base;
    auto now = version_of_(tensor);
    RETURN_IF_ERROR(now);
    if (now->generation == base.generation || now->checksum == base.checksum) continue;
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                fmt::format("transaction {}: tensor {} was changed by another program since it was staged",
                            begun.name, in_quotes(snapshots_->model->tensor(tensor).name)));
  }
  return {};
}

}  // namespace stfs
