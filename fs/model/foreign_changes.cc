#include "fs/model/foreign_changes.h"

#include <mutex>
#include <string>
#include <utility>

#include "core/journal/file_lock.h"
#include "fs/base/log.h"
#include "fs/model/mounted_model.h"

namespace stfs {

ForeignChanges::ForeignChanges(MountedModel& mounted)
    : mounted_(mounted), looks_(mounted.model().shards().size()) {}

ForeignChanges::Change ForeignChanges::check_for_change(std::uint32_t shard, bool follows) {
  if (!mounted_.model().shards()[shard].archive) return {};
  check_permissions(shard);
  const bool has_new_permissions = looks_[shard].has_new_permissions.exchange(false);
  Committer& committer = mounted_.committers_.of(shard);
  const std::scoped_lock turn(committer.turn);
  if (has_new_permissions) committer.retire_journal();
  Change change = note_foreign_change(shard, follows);
  change.has_new_permissions = has_new_permissions;
  for (const Stale& view : mounted_.stale_views(change.stale)) mounted_.tell_stale_(view);
  return change;
}

bool ForeignChanges::check_permissions(std::uint32_t shard) {
  const Snapshot::Pin pin = mounted_.snapshots_.pin();
  if (!mounted_.model().shards()[shard].archive) return false;
  const auto looked = mounted_.permissions_.look(shard);
  if (!looked && !looks_[shard].is_unknown.exchange(true)) log::error("{}", looked.error().message);
  if (!looked.value_or(false)) return false;
  looks_[shard].has_new_permissions = true;
  forget_permissions(shard);
  return true;
}

void ForeignChanges::forget_permissions(std::uint32_t shard) const {
  ++MountedModel::changes_;
  log::info("{}: mode or owner changed", mounted_.model().reader(shard).path().string());
  // The permissions of a delta also apply to the tensors of its base.
  const bool is_delta = mounted_.model().delta() && shard == mounted_.model().top();
  for (std::uint32_t told = is_delta ? 0 : shard; told <= shard; ++told) {
    mounted_.tell_stale_(mounted_.stale_shard(told, Stale::What::Attributes));
    if (const auto tensors = mounted_.ids_of_shard(told)) {
      for (const Stale& view : mounted_.views_.told(tensors->first, tensors->second))
        mounted_.tell_stale_(mounted_.stale(view.first, view.last, view.what));
    }
  }
  mounted_.tell_stale_(mounted_.stale(kRootIno, Stale::What::Attributes));
  mounted_.tell_stale_(mounted_.stale(Views::kNpy, Views::kFloat32, Stale::What::Attributes));
  for (const Ino entry : {Views::kHeaderJson, Views::kMetadataJson, Views::kArchive})
    mounted_.tell_stale_(mounted_.stale(mounted_.views_.present(entry), Stale::What::Attributes));
  mounted_.tell_stale_(mounted_.stale(kHiddenIno, TransactionDirectory::kCommitted, Stale::What::Attributes));
  const InodeTable& table = mounted_.tree_.table();
  for (std::size_t at = 0; at < table.directory_count(); ++at)
    mounted_.tell_stale_(mounted_.stale(table.directory(at), Stale::What::Attributes));
}

ForeignChanges::Change ForeignChanges::note_foreign_change(std::uint32_t shard, bool follows) {
  Archive& archive = mounted_.model().archive(shard);
  Look& known = looks_[shard];
  auto change = archive.check_for_change();
  const std::string path = archive.path().string();
  const auto unknown = [&](const Error& why) {
    // The error is logged once, because the check is repeated each second until the store works again.
    if (!known.is_unknown.exchange(true)) log::error("{}", why.message);
    return Change{.stale = {}, .is_unknown = true};
  };
  if (!change) return unknown(change.error());
  if (change->is_gone && !known.is_gone.exchange(true)) {
    log::warning("{}: deleted; this mount still shows its content, and refuses writes", path);
  }
  // No program opens the archive by the name that its journal has. This mount commits nothing more to the
  // archive.
  if (change->is_gone || change->is_replaced) mounted_.committers_.of(shard).retire_journal();
  // A store without events is checked each second. There, journals are listed only after a change.
  const bool may_have_dead = change->is_touched || archive.bytes().why_not_mapped().empty();
  const bool is_in_commit = ArchiveLocks::is_changed_by_other(*archive.local_file());
  if (mounted_.options_.fails_on_change) {
    const bool has_dead =
        !is_in_commit && may_have_dead && archive.is_as_in_file() && archive.has_dead_commit();
    if (change->is_touched || has_dead) {
      if (mounted_.reader_.note_changed(shard)) log::info("{}: changed by another program", path);
      return {.stale = {}, .is_outdated = true};
    }
  }
  Change found{.stale = {},
               .is_outdated = (change->is_replaced && !change->is_gone) || mounted_.reader_.is_broken(shard)};
  // During an edit the file has no header.
  if (is_in_commit && !(change->is_broken && change->header)) {
    // The change is adopted when it is complete.
    found.is_unsettled = true;
    const auto now = archive.status();
    // A process that holds its lock but writes nothing must not empty the caches in every check.
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
  // Until the change is adopted, reads may still return bytes of journals that others have finished. A
  // generation that was noted earlier does not cover the adopted bytes.
  if (is_touched) mounted_.states_.note_unsettled(shard);
  const auto adopted = is_touched ? archive.adopt_identity() : Result<void>();
  if (!adopted) return unknown(adopted.error());
  known.is_unknown = false;
  if (!is_touched) return found;
  // A delta fits only the base that it was made for.
  const auto present = mounted_.model().is_of_base(shard) ? nullptr : change->header;
  // A process that died in an edit which can't be finished here has removed no tensor. Opening the model logs
  // such an edit.
  if (change->is_being_edited) {
    found.is_outdated = true;
  } else if (change->is_broken && mounted_.reader_.note_broken(shard, present)) {
    log::warning("{}: another program has changed the archive's header: open files of it {}", path,
                 present ? "can't be written, and give EIO if their bytes have moved" : "give EIO");
  }
  found.is_outdated = found.is_outdated || mounted_.reader_.is_broken(shard);
  found.stale = note_touched(shard);
  // A delta fits only the bytes that it was made for. Reopening the model checks them.
  found.is_outdated = found.is_outdated || mounted_.model().is_of_base(shard);
  return found;
}

bool ForeignChanges::is_unsettled(std::uint32_t shard) const {
  const ArchiveReader& archive = mounted_.model().reader(shard);
  const File* const file = archive.local_file();
  if (file != nullptr && ArchiveLocks::is_changed_by_other(*file)) return true;
  return mounted_.committers_.is_in_attempt(shard) || !archive.is_as_known();
}

Stale ForeignChanges::note_touched(std::uint32_t shard) {
  const ArchiveReader& archive = mounted_.model().reader(shard);
  if (!mounted_.reader_.is_broken(shard))
    log::info("{}: changed by another program; caches dropped", archive.path().string());
  looks_[shard].is_touched = true;
  mounted_.states_.note_foreign_change(shard, archive.identity().mtime_ns);
  ++MountedModel::changes_;
  return mounted_.stale_shard(shard, Stale::What::Content);
}

void ForeignChanges::break_touched_base() {
  for (std::uint32_t shard = 0; shard < looks_.size(); ++shard) {
    if (looks_[shard].is_touched && mounted_.model().is_of_base(shard)) mounted_.reader_.note_broken(shard);
  }
}

}  // namespace stfs
