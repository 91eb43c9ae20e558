// Commits in the turn of the tensor's shard.
#include "fs/model/content_commits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "fs/model/shard_writer.h"
#include "fs/write/admitted_readers.h"

namespace stfs {

Result<Stale> ContentCommits::commit(const OpenFile& file, const TensorForm* form) {
  PendingContent& content = *file.content;
  Result<Stale> committed;
  const auto done = structure_.following([&]() -> Result<void> {
    if (auto same = check_target(content, form); !same) return same;
    committed = content.is_copy()       ? commit_copy(file, form)
                : is_elsewhere(content) ? commit_elsewhere(content, form)
                                        : commit_staged(file, form);
    return committed ? Result<void>() : tl::unexpected(committed.error());
  });
  return done ? committed : tl::unexpected(done.error());
}

Result<void> ContentCommits::check_target(const PendingContent& content, const TensorForm* form) const {
  const Model& model = *parts_.model;
  const TensorId tensor = content.tensor();
  if (model.ids().position(tensor)) {
    const Tensor now = model.tensor(tensor);
    if (form == nullptr || (form->dtype == now.dtype && std::ranges::equal(form->shape, now.shape)))
      return {};
    return fail(
        ErrorCode::InvalidArgument, ESTALE,
        fmt::format("{}: has another dtype or shape now, {} {}, than the {} {} that its new bytes are "
                    "meant for",
                    parts_.label_of(content), name_of(now.dtype), shape_text(now.shape), name_of(form->dtype),
                    shape_text(form->shape)));
  }
  if (!model.has(tensor)) return fail(ErrorCode::ArchiveChanged, ESTALE, "the tensor was deleted");
  const std::string label = parts_.label_of(content);
  const auto now = model.find(model.tensor(tensor).name);
  if (!now || model.file_range(*now) != model.file_range(tensor))
    return fail(ErrorCode::ArchiveChanged, ESTALE, label + ": was deleted since its new bytes were written");
  const Tensor another = model.tensor(*now);
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              fmt::format("{}: another program has given it another dtype or shape, {} {}, since its new "
                          "bytes were written",
                          label, name_of(another.dtype), shape_text(another.shape)));
}

bool ContentCommits::is_elsewhere(PendingContent& content) const {
  const Staging* const stage = content.staged();
  return stage != nullptr && stage->target() != parts_.model->file_range(content.tensor());
}

Result<Stale> ContentCommits::commit_elsewhere(PendingContent& content, const TensorForm* form) {
  const auto fill = [&](Staging& stage) { return copy_content(content, stage); };
  auto committed = commit_in_place(content.tensor(), fill, form);
  if (committed) content.forget();
  return committed;
}

Result<Stale> ContentCommits::commit_staged(const OpenFile& file, const TensorForm* form) {
  PendingContent& content = *file.content;
  // An attempt that failed behind its commit point has ended the stage.
  if (content.staged() == nullptr)
    return content.failure ? tl::unexpected(*content.failure) : Result<Stale>();
  const auto patch = content.complete();
  if (!patch) return tl::unexpected(patch.error());
  ShardWriter writer(parts_, foreign_, {content.shard()}, *patch);
  {
    const AdmittedReaders readers(content.mutex);
    while (writer.take_turns()) {
      writer.end_attempt(guard_memory([&]() -> Result<void> {
        if (auto same = check_target(content, form); !same) return same;
        auto done = content.commit(writer.options_of(), parts_.lock_of());
        if (done) note_commit(content);
        return done;
      }));
    }
  }
  auto& committed = writer.result();
  content.end_commit(committed);
  if (!committed) {
    // After a failure behind the commit point, reads show the new bytes, out of the journal.
    parts_.forget(parts_.stale(InodeTable::ino_of_tensor(content.tensor()), Stale::What::Content));
    for (const auto& [shard, others] : writer.foreign()) parts_.forget(others);
    return pass_on(std::move(committed));
  }
  parts_.note_commit();
  if (!writer.foreign().empty()) return writer.foreign().begin()->second;
  // The page cache already has a shared content's bytes, because its writes went through the page cache.
  const bool is_in_cache =
      file.kind != FileKind::Shared && parts_.may_be_cached[number_of(content.tensor())].exchange(false);
  return parts_.stale(file.ino, is_in_cache ? Stale::What::Content : Stale::What::Attributes);
}

Result<Stale> ContentCommits::commit_copy(const OpenFile& file, const TensorForm* form) {
  PendingContent& content = *file.content;
  const TensorId tensor = content.tensor();
  if (parts_.model->ids().position(tensor) && !parts_.model->is_of_base(parts_.model->place(tensor).shard)) {
    // Since the first write another program has brought it into the delta.
    return commit_elsewhere(content, form);
  }
  StructureChange change;
  change.is_patch = true;
  change.apply = [&](ModelEdit& edit) -> Result<void> {
    if (auto same = check_target(content, form); !same) return same;
    const Tensor now = parts_.model->tensor(tensor);
    change.ids = {{std::string(now.name), tensor}};
    return edit.put(std::string(now.name), now.dtype, {now.shape.begin(), now.shape.end()});
  };
  change.fill = [&](ModelEdit& edit) -> Result<void> {
    Staging* const stage = edit.stage(parts_.model->tensor(tensor).name);
    return stage == nullptr ? Result<void>() : copy_content(content, *stage);
  };
  // It completes the stage, which does not change from here on, so readers may come in.
  if (auto completed = content.staged()->pieces(); !completed) return tl::unexpected(completed.error());
  auto outdated = guard_memory([&] {
    const AdmittedReaders readers(content.mutex);
    return structure_.edit(change);
  });
  if (!outdated) return pass_on(std::move(outdated));
  if (const auto mtime = parts_.open_files.kept_mtime(content)) parts_.states.set_mtime(tensor, *mtime);
  content.forget();
  parts_.tell_outdated(*outdated);
  const bool is_in_cache =
      file.kind != FileKind::Shared && parts_.may_be_cached[number_of(tensor)].exchange(false);
  return parts_.stale(InodeTable::ino_of_tensor(tensor),
                      is_in_cache ? Stale::What::Content : Stale::What::Attributes);
}

Result<void> ContentCommits::copy_content(PendingContent& content, Staging& to) const {
  const auto read_base = [&](std::span<std::byte> part, std::uint64_t at) {
    return parts_.reader.copy(content.tensor(), at, part);
  };
  return to.write_all(content.size_bytes(), [&](std::span<std::byte> part, std::uint64_t at) {
    return content.read(part, at, read_base);
  });
}

Result<Stale> ContentCommits::commit_in_place(TensorId tensor,
                                              const std::function<Result<void>(Staging&)>& fill,
                                              const TensorForm* form) {
  OpenFile patch;
  patch.ino = InodeTable::ino_of_tensor(tensor);
  patch.content = std::make_shared<PendingContent>(parts_.model, tensor);
  const std::scoped_lock lock(patch.content->mutex);
  if (auto emptied = patch.content->resize(0); !emptied) return pass_on(std::move(emptied));
  if (auto copied = fill(**patch.content->stage()); !copied) return pass_on(std::move(copied));
  patch.kind = FileKind::Isolated;
  return commit(patch, form);
}

void ContentCommits::note_commit(const PendingContent& content) {
  const TensorId tensor = content.tensor();
  parts_.states.note_commit(tensor, parts_.model->archive_of(tensor).identity().mtime_ns,
                            parts_.open_files.kept_mtime(content));
}

}  // namespace stfs
