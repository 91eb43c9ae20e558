// Looks at the files.
#include "fs/model/foreign_changes.h"

#include <mutex>
#include <string>
#include <utility>

#include "core/journal/file_lock.h"
#include "fs/base/log.h"

namespace stfs {

ForeignChanges::Change ForeignChanges::check_for_change(std::uint32_t shard, bool follows) {
  if (!parts_.model->shards()[shard].archive) return {};
  const auto looked = parts_.permissions.look(shard);
  if (!looked && !looks_[shard].is_unknown) log::error("{}", looked.error().message);
  const bool has_new_permissions = looked.value_or(false);
  if (has_new_permissions) forget_permissions(shard);
  Committer& committer = parts_.committers.of(shard);
  const std::scoped_lock turn(committer.turn);
  if (has_new_permissions) committer.retire_journal();
  Change change = note_foreign_change(shard, follows);
  change.has_new_permissions = has_new_permissions;
  for (const Stale& view : parts_.stale_views(change.stale)) parts_.forget(view);
  return change;
}

void ForeignChanges::forget_permissions(std::uint32_t shard) const {
  ++ModelParts::changes;
  log::info("{}: mode or owner changed", parts_.model->reader(shard).path().string());
  // What a delta allows counts for the tensors of its base, too.
  const bool is_delta = parts_.model->delta() && shard == parts_.model->top();
  for (std::uint32_t told = is_delta ? 0 : shard; told <= shard; ++told) {
    parts_.forget(parts_.stale_shard(told, Stale::What::Attributes));
    if (const auto tensors = parts_.ids_of_shard(told)) {
      for (const Stale& view : parts_.views.told(tensors->first, tensors->second))
        parts_.forget(parts_.stale(view.first, view.last, view.what));
    }
  }
  parts_.forget(parts_.stale(kRootIno, Stale::What::Attributes));
  parts_.forget(parts_.stale(Views::kNpy, Views::kFloat32, Stale::What::Attributes));
  for (const Ino entry : {Views::kHeaderJson, Views::kMetadataJson, Views::kArchive})
    parts_.forget(parts_.stale(parts_.views.present(entry), Stale::What::Attributes));
  parts_.forget(parts_.stale(kHiddenIno, TransactionDirectory::kCommitted, Stale::What::Attributes));
  const InodeTable& table = parts_.tree.table();
  for (std::size_t at = 0; at < table.directory_count(); ++at)
    parts_.forget(parts_.stale(table.directory(at), Stale::What::Attributes));
}

ForeignChanges::Change ForeignChanges::note_foreign_change(std::uint32_t shard, bool follows) {
  Archive& archive = parts_.model->archive(shard);
  Look& known = looks_[shard];
  auto change = archive.check_for_change();
  const std::string path = archive.path().string();
  const auto unknown = [&](const Error& why) {
    // Logged once: the check is repeated each second until the store works again.
    if (!known.is_unknown.exchange(true)) log::error("{}", why.message);
    return Change{.stale = {}, .is_unknown = true};
  };
  if (!change) return unknown(change.error());
  if (change->is_gone && !known.is_gone.exchange(true)) {
    log::warning("{}: deleted; this mount still shows its content, and refuses writes", path);
  }
  // Nobody opens the archive by the name that its journal has. Nothing more is committed to it here.
  if (change->is_gone || change->is_replaced) parts_.committers.of(shard).retire_journal();
  // A store without events is asked each second: there only a change makes it worth to list journals.
  const bool may_have_dead = change->is_touched || archive.bytes().why_not_mapped().empty();
  const bool is_in_commit = ArchiveLocks::is_changed_by_other(*archive.local_file());
  if (parts_.options.fails_on_change) {
    const bool has_dead =
        !is_in_commit && may_have_dead && archive.is_as_in_file() && archive.has_dead_commit();
    if (change->is_touched || has_dead) {
      if (parts_.reader.note_changed(shard)) log::info("{}: changed by another program", path);
      return {.stale = {}, .is_outdated = true};
    }
  }
  Change found{.stale = {},
               .is_outdated = (change->is_replaced && !change->is_gone) || parts_.reader.is_broken(shard)};
  // In the middle of an edit there is no header.
  if (is_in_commit && !(change->is_broken && change->header)) {
    // The change is adopted when it is whole.
    found.is_unsettled = true;
    const auto now = archive.status();
    // A process that holds its lock and writes no more must not cost the caches again and again.
    if (change->is_touched && now && now->identity != std::exchange(known.seen, now->identity))
      found.stale = note_touched(shard);
    return found;
  }
  const auto finished = may_have_dead ? archive.finish_dead_commits() : Result<bool>(false);
  if (!finished) return unknown(finished.error());
  if (*finished) {
    log::warning("{}: finished the commit of a process that has died", path);
    change = archive.check_for_change();
    if (!change) return unknown(change.error());
  }
  found.is_edited = follows && change->is_broken && change->header && !change->is_replaced;
  if (found.is_edited) return found;
  const bool is_touched = change->is_touched || *finished;
  // Until the change is adopted, reads may still come from journals that others have finished. No generation
  // of before counts for what is adopted.
  if (is_touched) parts_.states.note_unsettled(shard);
  const auto adopted = is_touched ? archive.adopt_identity() : Result<void>();
  if (!adopted) return unknown(adopted.error());
  known.is_unknown = false;
  if (!is_touched) return found;
  // A delta lies on no other base than the one that it was made for.
  const auto present = parts_.model->is_of_base(shard) ? nullptr : change->header;
  // Who died in an edit that can't be finished here has taken no tensor away. Opening the model tells of it.
  if (change->is_being_edited) {
    found.is_outdated = true;
  } else if (change->is_broken && parts_.reader.note_broken(shard, present)) {
    log::warning("{}: another program has changed the archive's header: open files of it {}", path,
                 present ? "can't be written, and give EIO if their bytes have moved" : "give EIO");
  }
  found.is_outdated = found.is_outdated || parts_.reader.is_broken(shard);
  found.stale = note_touched(shard);
  // A delta fits only the bytes that it was made for. Reopening the model checks them.
  found.is_outdated = found.is_outdated || parts_.model->is_of_base(shard);
  return found;
}

bool ForeignChanges::is_unsettled(std::uint32_t shard) const {
  const ArchiveReader& archive = parts_.model->reader(shard);
  const File* const file = archive.local_file();
  if (file != nullptr && ArchiveLocks::is_changed_by_other(*file)) return true;
  return parts_.committers.is_in_attempt(shard) || !archive.is_as_known();
}

Stale ForeignChanges::note_touched(std::uint32_t shard) {
  const ArchiveReader& archive = parts_.model->reader(shard);
  if (!parts_.reader.is_broken(shard))
    log::info("{}: changed by another program; caches dropped", archive.path().string());
  looks_[shard].is_touched = true;
  parts_.states.note_foreign_change(shard, archive.identity().mtime_ns);
  ++ModelParts::changes;
  return parts_.stale_shard(shard, Stale::What::Content);
}

void ForeignChanges::break_touched_base() {
  for (std::uint32_t shard = 0; shard < looks_.size(); ++shard) {
    if (looks_[shard].is_touched && parts_.model->is_of_base(shard)) parts_.reader.note_broken(shard);
  }
}

}  // namespace stfs
