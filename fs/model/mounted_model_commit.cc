#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "fs/model/mounted_model.h"
#include "fs/model/shard_writer.h"
#include "fs/write/admitted_readers.h"

namespace stfs {

Result<Stale> MountedModel::commit_patch(const OpenFile& file, const TensorForm* form) {
  PendingFile& content = *file.content;
  Result<Stale> committed;
  const auto done = structure_.following([&]() -> Result<void> {
    RETURN_IF_ERROR(check_commit_target(content, form));
    const TensorPatch& patch = *content.patch();
    committed = patch.is_copy()        ? commit_copy(file, form)
                : patch.is_elsewhere() ? commit_elsewhere(content, form)
                                       : commit_stage(file, form);
    return committed ? Result<void>() : tl::unexpected(committed.error());
  });
  return done ? committed : tl::unexpected(done.error());
}

Result<void> MountedModel::check_commit_target(const PendingFile& content, const TensorForm* form) const {
  const Model& model = this->model();
  const TensorId tensor = content.tensor();
  if (model.ids().position(tensor)) {
    const Tensor now = model.tensor(tensor);
    if (form == nullptr || (form->dtype == now.dtype && std::ranges::equal(form->shape, now.shape)))
      return {};
    return fail(
        ErrorCode::InvalidArgument, ESTALE,
        fmt::format("{}: has another dtype or shape now, {} {}, than the {} {} that its new bytes are "
                    "meant for",
                    label_of(content), name_of(now.dtype), shape_text(now.shape), name_of(form->dtype),
                    shape_text(form->shape)));
  }
  if (!model.has(tensor)) return fail(ErrorCode::ArchiveChanged, ESTALE, "the tensor was deleted");
  const std::string label = label_of(content);
  const auto now = model.find(model.tensor(tensor).name);
  if (!now || model.file_range(*now) != model.file_range(tensor))
    return fail(ErrorCode::ArchiveChanged, ESTALE, label + ": was deleted since its new bytes were written");
  const Tensor another = model.tensor(*now);
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              fmt::format("{}: another program has given it another dtype or shape, {} {}, since its new "
                          "bytes were written",
                          label, name_of(another.dtype), shape_text(another.shape)));
}

Result<Stale> MountedModel::commit_elsewhere(PendingFile& content, const TensorForm* form) {
  const auto fill = [&](Staging& stage) { return copy_content(content, stage); };
  auto committed = commit_in_place(content.tensor(), fill, form);
  if (committed) content.note_committed();
  return committed;
}

Result<Stale> MountedModel::commit_stage(const OpenFile& file, const TensorForm* form) {
  PendingFile& content = *file.content;
  // An attempt that failed past its commit point has ended the stage.
  TensorPatch& patch = *content.patch();
  if (patch.staged() == nullptr) return content.failure ? tl::unexpected(*content.failure) : Result<Stale>();
  const auto changed = patch.complete();
  RETURN_IF_ERROR(changed);
  ShardWriter writer(*this, {patch.shard()}, *changed);
  {
    const AdmittedReaders readers(content.mutex);
    while (writer.take_turns()) {
      writer.end_attempt(guard_memory([&]() -> Result<void> {
        RETURN_IF_ERROR(check_commit_target(content, form));
        auto done = patch.commit(content.mutex, writer.options_of(), lock_of());
        if (done) note_patched(content);
        return done;
      }));
    }
  }
  auto& committed = writer.result();
  if (committed) content.note_committed();
  if (!committed && patch.has_ended()) content.fail(committed.error());
  if (!committed) {
    // If the commit has failed past its commit point, reads get the new bytes from the journal.
    tell_stale_(stale(InodeTable::ino_of_tensor(content.tensor()), Stale::What::Content));
    for (const auto& [shard, others] : writer.foreign()) tell_stale_(others);
    return pass_on(std::move(committed));
  }
  note_commit();
  if (!writer.foreign().empty()) return writer.foreign().begin()->second;
  // The page cache already has a shared content's bytes, because its writes went through the page cache.
  const bool is_in_cache =
      file.kind != FileKind::Shared && may_be_cached_[number_of(content.tensor())].exchange(false);
  return stale(file.ino, is_in_cache ? Stale::What::Content : Stale::What::Attributes);
}

Result<Stale> MountedModel::commit_copy(const OpenFile& file, const TensorForm* form) {
  PendingFile& content = *file.content;
  const TensorId tensor = content.tensor();
  if (model().ids().position(tensor) && !model().is_of_base(model().place(tensor).shard)) {
    // Another program has added the tensor to the delta since the first write.
    return commit_elsewhere(content, form);
  }
  StructureChange change;
  change.is_patch = true;
  change.apply = [&](ModelEdit& edit) -> Result<void> {
    RETURN_IF_ERROR(check_commit_target(content, form));
    const Tensor now = model().tensor(tensor);
    change.ids = {{std::string(now.name), tensor}};
    return edit.put(std::string(now.name), now.dtype, {now.shape.begin(), now.shape.end()});
  };
  change.fill = [&](ModelEdit& edit) -> Result<void> {
    Staging* const stage = edit.stage(model().tensor(tensor).name);
    return stage == nullptr ? Result<void>() : copy_content(content, *stage);
  };
  // The stage does not change any more, so readers may enter.
  RETURN_IF_ERROR(content.patch()->complete());
  auto outdated = guard_memory([&] {
    const AdmittedReaders readers(content.mutex);
    return structure_.edit(change);
  });
  RETURN_IF_ERROR(outdated);
  if (const auto mtime = open_files_.kept_mtime(content)) states_.set_mtime(tensor, *mtime);
  content.note_committed();
  tell_outdated_(*outdated);
  const bool is_in_cache = file.kind != FileKind::Shared && may_be_cached_[number_of(tensor)].exchange(false);
  return stale(InodeTable::ino_of_tensor(tensor),
               is_in_cache ? Stale::What::Content : Stale::What::Attributes);
}

Result<void> MountedModel::copy_content(PendingFile& content, Staging& to) const {
  const auto read_base = [&](std::span<std::byte> part, std::uint64_t at) {
    return reader_.copy(content.tensor(), at, part);
  };
  return to.write_all(content.size_bytes(), [&](std::span<std::byte> part, std::uint64_t at) {
    return content.read(part, at, read_base);
  });
}

Result<Stale> MountedModel::commit_in_place(TensorId tensor,
                                            const std::function<Result<void>(Staging&)>& fill,
                                            const TensorForm* form) {
  auto bytes = std::make_unique<TensorPatch>(snapshots_, tensor);
  TensorPatch& patch = *bytes;
  OpenFile file;
  file.ino = InodeTable::ino_of_tensor(tensor);
  file.kind = FileKind::Isolated;
  file.content = std::make_shared<PendingFile>(tensor, std::move(bytes));
  const std::scoped_lock lock(file.content->mutex);
  RETURN_IF_ERROR(file.content->resize(0));
  RETURN_IF_ERROR(fill(**patch.stage()));
  return commit_patch(file, form);
}

void MountedModel::note_patched(const PendingFile& content) {
  const TensorId tensor = content.tensor();
  states_.note_commit(tensor, model().archive_of(tensor).identity().mtime_ns,
                      open_files_.kept_mtime(content));
}

}  // namespace stfs
