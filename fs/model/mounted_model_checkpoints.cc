// Files that programs write a whole checkpoint to: `.safetensors/archive.safetensors`, and files that get
// this name by a rename. A commit changes only the tensors that differ, in one transaction.
// fs/write/checkpoint.h compares them.
//
// If most bytes differ, fs/write/checkpoint.h rewrites the archive instead, and the commit replaces the
// archive by the new file (replace_by_checkpoint()). The mount then shows the new archive as a new edition,
// as after a replacement by another program, but before the close or the rename returns
// (MountRoot::show_replacement()):
//
//   open files of the old edition    read the old archive; a write to them fails with ESTALE
//   whole views, generations         are of the new edition; generations continue to grow
//   scratch files                    are beside the archive: the new edition lists them
//   transactions, open tensors       none: while there is one, a checkpoint is saved in place. If one begins
//                                    after the change to rewriting, the commit is an edit in place
//   another unfinished checkpoint    has its name in the old edition: its rename fails
//   working directories              the root and `.safetensors` of a mount of one model stay (inode_space.h)
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/commit/archive_replacement.h"
#include "core/format/json_string.h"
#include "core/model/model_directory.h"
#include "core/model/model_index.h"
#include "fs/base/log.h"
#include "fs/model/mounted_model.h"
#include "fs/write/checkpoint.h"
#include "fs/write/checkpoint_index.h"

namespace stfs {
namespace {

/// True for the names of temporary files of safetensors, and for other names that suggest a checkpoint.
bool is_name_of_checkpoint(std::string_view name) {
  return name.find(".tmp") != std::string_view::npos || name.find(".safetensors") != std::string_view::npos;
}

/// True for a shard's name, which an index will list with others: model-00001-of-00002.safetensors.
bool is_name_of_shard(std::string_view name) {
  return name.find("-of-") != std::string_view::npos;
}

/// True if the error refuses to take a name from a file that can still be written. The file is a mount point,
/// or another user's file in a directory with the sticky bit.
bool is_refused_name(const Error& error) {
  constexpr std::array kRefusals = {EPERM, EACCES, EBUSY, EXDEV, EROFS, EOPNOTSUPP};
  return error.code == ErrorCode::System &&
         std::ranges::find(kRefusals, error.errno_value) != kRefusals.end();
}

/// True if both have the same pairs. A program that saves a loaded model may write the pairs in another
/// order.
bool is_same(const Metadata& one, const Metadata& other) {
  if (one == other || one.size() != other.size()) return one == other;
  std::vector<Metadata::value_type> sorted(one.begin(), one.end());
  std::vector<Metadata::value_type> sorted_other(other.begin(), other.end());
  std::ranges::sort(sorted);
  std::ranges::sort(sorted_other);
  return sorted == sorted_other;
}

/// A tensor of one of the files of a checkpoint.
struct SavedTensor {
  const Checkpoint* of = nullptr;
  std::uint32_t at = 0;
  [[nodiscard]] const Checkpoint::Saved& saved() const { return of->saved(at); }
  [[nodiscard]] bool is_changed() const { return of->is_changed(at); }
  [[nodiscard]] Tensor tensor() const { return of->header().tensors[at]; }
};
using Files = std::vector<const Checkpoint*>;

std::optional<SavedTensor> find_saved(const Files& files, std::string_view name) {
  for (const Checkpoint* const file : files) {
    if (const auto at = file->header().tensors.find(name)) return SavedTensor{file, *at};
  }
  return std::nullopt;
}

std::vector<SavedTensor> changed_in(const Files& files) {
  std::vector<SavedTensor> changed;
  for (const Checkpoint* const file : files) {
    for (std::uint32_t at = 0; at < file->header().tensors.size(); ++at) {
      if (file->is_changed(at)) changed.push_back({file, at});
    }
  }
  return changed;
}

tl::unexpected<Error> refuse_shards(std::string why) {
  return fail(ErrorCode::WrongSize, EINVAL, "the checkpoint is not saved: " + std::move(why));
}

/// A file of a checkpoint, with its content locked. The destructor unlocks before it may destroy the content.
struct LockedDraft {
  explicit LockedDraft(Drafts::Draft its) : draft(std::move(its)), lock(draft.content->mutex) {}
  Drafts::Draft draft;
  std::unique_lock<ContentLock> lock;
};

/// Returns the files that an index names. The files must be beside the index, whole, and have exactly the
/// index's tensors.
Result<std::vector<LockedDraft>> shards_of(const ModelIndex& index, const Drafts& drafts, Ino directory) {
  std::vector<LockedDraft> shards;
  std::uint64_t tensors = 0;
  for (const std::string& name : index.shards()) {
    auto draft = drafts.find(directory, name);
    if (!draft || draft->content->checkpoint() == nullptr)
      return refuse_shards(fmt::format("its index names {}, which was not written before", in_quotes(name)));
    const PendingFile& content = *shards.emplace_back(std::move(*draft)).draft.content;
    if (content.failure) return tl::unexpected(*content.failure);
    const Checkpoint& saved = *content.checkpoint();
    RETURN_IF_ERROR(saved.check());
    tensors += saved.header().tensors.size();
  }
  for (std::uint32_t at = 0; at < index.size(); ++at) {
    const auto [tensor, shard] = index[at];
    if (shards[shard].draft.content->checkpoint()->header().tensors.find(tensor)) continue;
    return refuse_shards(fmt::format("tensor {} is not in {}, which its index names", in_quotes(tensor),
                                     in_quotes(index.shards()[shard])));
  }
  if (tensors != index.size()) {
    return refuse_shards(
        fmt::format("its files have {} tensors, and its index names {}", tensors, index.size()));
  }
  return shards;
}

/// Drops a file of an earlier save that no index has committed, if no program has the file open. A new file
/// then takes the name.
void drop_unsaved(Drafts& drafts, Ino directory, std::string_view name) {
  const auto before = drafts.find(directory, name);
  if (!before) return;
  const std::scoped_lock lock(before->content->mutex);
  if (before->content->descriptors == 0) drafts.remove(before->ino);
}

}  // namespace

bool MountedModel::takes_checkpoint(std::string_view name) {
  // Temporary names may have a prefix and a suffix.
  const std::size_t dot = name.find(kArchiveSuffix);
  std::string_view stem = name.substr(0, dot == std::string_view::npos ? 0 : dot);
  while (stem.starts_with('.')) stem.remove_prefix(1);
  return name.starts_with(".tmp") || stem == "model" || (stem.starts_with("model") && is_name_of_shard(stem));
}

std::unique_ptr<Checkpoint> MountedModel::make_checkpoint(bool waits_for_name, bool is_shard) const {
  return std::make_unique<Checkpoint>(
      snapshots_, reader_, states_, archive_for_new(), waits_for_name, draft_bytes_,
      [this, is_shard](const Checkpoint& saved) -> Result<void> {
        if (is_shard) return fail(ErrorCode::InvalidArgument, EOPNOTSUPP, "it has several files");
        return check_rewriting(saved);
      });
}

Result<OpenFile*> MountedModel::open_checkpoint(const Node& node, int flags, pid_t opener) {
  if (!options_.allows_edits) return fail(ErrorCode::ReadOnly, EROFS, "views are read-only");
  RETURN_IF_ERROR(check_editable());
  RETURN_IF_ERROR(check_caller_writes_all());
  if ((flags & O_ACCMODE) != O_WRONLY)
    return fail(ErrorCode::ReadOnly, EROFS, "a checkpoint is written as a whole: open it for writing only");
  auto content = std::make_shared<PendingFile>(TensorId{~std::uint32_t{0}}, make_checkpoint(false, false));
  const bool is_alone = drafts_.add(
      {.ino = node.ino, .directory = 0, .file_name = std::to_string(node.ino), .content = content});
  if (!is_alone) return fail(ErrorCode::Busy, EBUSY, "another program is writing a checkpoint");
  return add_open(node.ino, flags, opener, FileKind::New, std::move(content));
}

Result<CreatedFile> MountedModel::create_checkpoint(Ino directory, std::string_view name, int flags,
                                                    pid_t opener) {
  if (!is_name_of_checkpoint(name)) {
    return fail(ErrorCode::InvalidArgument, options_.is_read_only ? EROFS : EPERM,
                "only a checkpoint can be made here, under a name such as .tmp1 or x.safetensors");
  }
  RETURN_IF_ERROR(check_editable());
  RETURN_IF_ERROR(check_caller_writes_all());
  auto share = draft_counts_.take(requesting_user());
  RETURN_IF_ERROR(share);
  const Ino ino = InodeTable::ino_of_tensor(give_id());
  std::unique_ptr<PendingBytes> made;
  if (name.ends_with(kModelIndexSuffix)) {
    made = std::make_unique<CheckpointIndex>(draft_bytes_);
  } else {
    made = make_checkpoint(true, is_name_of_shard(name));
  }
  auto content = std::make_shared<PendingFile>(InodeTable::tensor(ino), std::move(made));
  content->count_for(std::move(*share));
  if (!drafts_.add({.ino = ino, .directory = directory, .file_name = std::string(name), .content = content}))
    return fail(ErrorCode::Busy, EBUSY, "another program is making this file");
  auto shown = status_of(node_of(ino));
  RETURN_IF_ERROR(shown);
  return CreatedFile{*shown, add_open(ino, flags, opener, FileKind::New, std::move(content))};
}

Result<Outdated> MountedModel::rename_checkpoint(Ino directory, std::string_view name, Ino new_directory,
                                                 std::string_view new_name) {
  RETURN_IF_ERROR(check_caller_writes_all());
  const auto draft = drafts_.find(directory, name);
  const auto target = directory_of(new_directory).find(new_directory, new_name);
  if (draft && !target && new_directory == PretrainedDirectory::kDirectory && !takes_checkpoint(new_name)) {
    return fail(
        ErrorCode::InvalidArgument, EPERM,
        "is no name of the model, and a checkpoint that was written under a temporary name is none of "
        "another file: write it beside the archive");
  }
  if (draft && !target && is_name_of_checkpoint(new_name)) {
    const bool is_other = directory != new_directory || name != new_name;
    if (is_other) drop_unsaved(drafts_, new_directory, new_name);
    if (drafts_.rename(draft->ino, new_directory, new_name)) return Outdated{};
    return fail(ErrorCode::Busy, EBUSY, "another program is making this file");
  }
  if (!draft || !target || !Views::is_archive(*target)) {
    return fail(ErrorCode::InvalidArgument, EPERM,
                "here only a checkpoint can be renamed, to the name of the whole model");
  }
  const std::scoped_lock lock(draft->content->mutex);
  if (draft->content->failure) return tl::unexpected(*draft->content->failure);
  if (draft->content->checkpoint() == nullptr)
    return fail(ErrorCode::InvalidArgument, EPERM, "an index of shards can't be renamed to the model");
  Checkpoint& saved = *draft->content->checkpoint();
  if (auto whole = saved.check(); !whole) {
    whole.error().errno_value = ENODATA;  // as for a transaction: mv(1) misreads EINVAL
    return pass_on(std::move(whole));
  }
  auto committed = commit_checkpoint(*draft->content);
  RETURN_IF_ERROR(committed);
  drafts_.remove(draft->ino);
  return committed;
}

Result<Outdated> MountedModel::commit_checkpoint(PendingFile& content) {
  const auto pin = snapshots_.pin();
  Checkpoint* const saved = content.checkpoint();
  Outdated found;
  auto committed =
      saved == nullptr ? commit_checkpoint_shards(content, found) : commit_whole_checkpoint(*saved, found);
  if (!committed) {
    for (const Stale& one : found.stale) tell_stale_(one);
    if (!found.entries.empty()) tell_outdated_({.stale = {}, .entries = std::move(found.entries)});
    return pass_on(std::move(committed));
  }
  content.note_committed();
  return found;
}

Result<void> MountedModel::commit_checkpoint_shards(PendingFile& content, Outdated& found) {
  const auto parsed = parse_model_index(content.checkpoint_index()->text());
  const auto own = drafts_.find(InodeTable::ino_of_tensor(content.tensor()));
  RETURN_IF_ERROR(parsed);
  if (!own) return refuse_shards("its index was deleted");
  auto shards = shards_of(*parsed, drafts_, own->directory);
  RETURN_IF_ERROR(shards);
  Files files;
  for (const auto& [shard, lock] : *shards) files.push_back(shard.content->checkpoint());
  RETURN_IF_ERROR(edit_to_checkpoint(files, found.stale));
  log::info("{}: checkpoint of {} files saved: {} of {} tensors differed", model().path().string(),
            files.size(), changed_in(files).size(), parsed->size());
  for (const auto& [shard, lock] : *shards) {
    shard.content->note_committed();
    drafts_.remove(shard.ino);
  }
  return {};
}

Result<void> MountedModel::commit_whole_checkpoint(Checkpoint& saved, Outdated& found) {
  if (saved.rewritten() != nullptr) {
    const auto replaced = replace_by_checkpoint(saved, found);
    RETURN_IF_ERROR(replaced);
    if (*replaced) return {};
  }
  const TensorIndex& tensors = saved.header().tensors;
  std::vector<std::uint32_t> changed;
  bool is_edit = saved.rewritten() != nullptr || !is_same(saved.header().metadata, model().metadata()) ||
                 tensors.size() != model().tensors().size();
  for (std::uint32_t at = 0; at < tensors.size(); ++at) {
    is_edit = is_edit || !saved.saved(at).same;
    if (saved.is_changed(at)) changed.push_back(at);
  }
  is_edit = is_edit || (saved.group() != nullptr && saved.group()->has_copies());
  auto committed =
      is_edit ? edit_to_checkpoint({&saved}, found.stale) : patch_checkpoint(saved, changed, found.stale);
  RETURN_IF_ERROR(committed);
  log::info("{}: checkpoint saved: {} of {} tensors differed", model().path().string(), changed.size(),
            tensors.size());
  return {};
}

Result<void> MountedModel::check_rewriting(const Checkpoint& saved) const {
  const auto no = [](std::string why) {
    return fail(ErrorCode::InvalidArgument, EOPNOTSUPP, std::move(why));
  };
  const Model& model = this->model();
  if (!show_replacement_) return no("this file system can't show another archive in its place");
  if (model.is_sharded()) return no("the model has several files");
  if (model.delta()) return no("the mount has a delta");
  if (transactions_.is_any_open()) return no("a transaction is open");
  bool is_alone = true;
  open_files_.visit(
      [&](const OpenFile& file) { is_alone = is_alone && file.content->checkpoint() == &saved; });
  return is_alone ? Result<void>() : no("a program has another file of the model open for writing");
}

Result<bool> MountedModel::replace_by_checkpoint(Checkpoint& saved, Outdated& found) {
  const std::string path = model().path().string();
  const auto in_place = [&](const Error& why) {
    log::info("{}: a checkpoint of which most bytes differ is saved in place: {}", path, why.message);
    return false;
  };
  if (const auto still = check_rewriting(saved); !still) return in_place(still.error());
  const Durability durability = archive_for_new().durability(options_.commit.durability);
  RETURN_IF_ERROR(saved.sync_rewritten(durability));
  Committer& committer = committers_.of(0);
  const auto check = [&] { return check_unchanged(saved); };
  bool is_replaced = false;
  auto done = structure_.following([&] {
    ShardWriter writer(*this, {0});
    writer.set_check(check);
    while (writer.take_turns()) {
      writer.end_attempt(guard_memory([&]() -> Result<void> {
        committer.retire_journal();
        const auto options = writer.options(0);
        RETURN_IF_ERROR(options);
        return replace_archive(archive_for_new(), *saved.rewritten(), *options, check, is_replaced);
      }));
    }
    for (const auto& [shard, others] : writer.foreign()) found.stale.push_back(others);
    return std::move(writer.result());
  });
  if (!done && !is_replaced && is_refused_name(done.error())) return in_place(done.error());
  if (!is_replaced) return pass_on(std::move(done));
  {
    // The journal that a commit may have kept for the next commit belonged to the old archive.
    const std::scoped_lock turn(committer.turn);
    committer.retire_journal();
  }
  Outdated shown = show_replacement_();
  std::ranges::move(shown.stale, std::back_inserter(found.stale));
  found.entries = std::move(shown.entries);
  RETURN_IF_ERROR(done);
  note_commit();
  log::info("{}: checkpoint saved in a new file: {} tensors", path, saved.header().tensors.size());
  return true;
}

Result<void> MountedModel::check_unchanged(const Checkpoint& saved) const {
  const TensorIndex& tensors = saved.header().tensors;
  for (std::uint32_t at = 0; at < tensors.size(); ++at) {
    const auto same = saved.saved(at).same;
    if (!same) continue;
    const bool is_there = model().ids().position(*same).has_value();
    if (is_there && states_.of(*same).noted == saved.saved(at).generation) continue;
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                fmt::format("tensor {} was changed while the checkpoint was written: save it again",
                            in_quotes(tensors[at].name)));
  }
  return {};
}

Result<void> MountedModel::patch_checkpoint(const Checkpoint& saved,
                                            const std::vector<std::uint32_t>& changed,
                                            std::vector<Stale>& found) {
  if (changed.empty()) return check_unchanged(saved);
  Committers::Shards shards;
  for (const std::uint32_t at : changed) shards.insert(model().place(*saved.saved(at).same).shard);
  const auto check = [&] { return check_unchanged(saved); };
  auto done = structure_.following([&] {
    ShardWriter writer(*this, shards);
    writer.set_check(check);
    while (writer.take_turns()) {
      writer.end_attempt(guard_memory([&]() -> Result<void> {
        RETURN_IF_ERROR(check());
        auto committed = saved.group()->commit(writer.options_of(), lock_of());
        RETURN_IF_ERROR(committed);
        for (const std::uint32_t at : changed) {
          const TensorId tensor = *saved.saved(at).same;
          const std::int64_t mtime_ns = model().archive_of(tensor).identity().mtime_ns;
          states_.note_commit(tensor, mtime_ns, std::nullopt);
        }
        return committed;
      }));
    }
    for (const auto& [shard, others] : writer.foreign()) tell_stale_(others);
    return std::move(writer.result());
  });
  // If the commit has failed past its commit point, reads get the new bytes from the journal.
  for (const std::uint32_t at : changed)
    found.push_back(stale(InodeTable::ino_of_tensor(*saved.saved(at).same), Stale::What::Content));
  if (done) note_commit();
  return done;
}

Result<void> MountedModel::edit_to_checkpoint(const std::vector<const Checkpoint*>& files,
                                              std::vector<Stale>& found) {
  StructureChange change;
  std::vector<std::string> missing;
  for (std::uint32_t at = 0; at < model().tensors().size(); ++at) {
    const std::string_view name = model().tensors()[at].name;
    const auto saved = find_saved(files, name);
    if (!saved) missing.emplace_back(name);
    if (saved && !saved->is_changed()) continue;
    const TensorId tensor = model().ids().of(at);
    if (saved && saved->saved().same && model().is_of_base(model().place(at).shard)) {
      change.ids.emplace(name, tensor);  // only its bytes are new
      found.push_back(stale(InodeTable::ino_of_tensor(tensor), Stale::What::Content));
    } else {
      change.touched.push_back(tensor);
    }
  }
  const std::vector<SavedTensor> changed = changed_in(files);
  change.apply = [&](ModelEdit& edit) -> Result<void> {
    for (const Checkpoint* const file : files) {
      RETURN_IF_ERROR(check_unchanged(*file));
    }
    for (const std::string& name : missing) {
      RETURN_IF_ERROR(edit.remove(name));
    }
    for (const SavedTensor& one : changed) {
      const Tensor tensor = one.tensor();
      auto put = edit.put(std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()});
      RETURN_IF_ERROR(put);
    }
    const Metadata before = model().metadata();
    for (const auto& [key, value] : before) {
      const bool is_kept = std::ranges::any_of(files, [&key = key](const Checkpoint* file) {
        return file->header().metadata.find(key).has_value();
      });
      if (is_kept) continue;
      RETURN_IF_ERROR(edit.set_metadata(key, std::nullopt));
    }
    for (const Checkpoint* const file : files) {
      for (const auto& [key, value] : file->header().metadata) {
        RETURN_IF_ERROR(edit.set_metadata(key, std::string(value)));
      }
    }
    return {};
  };
  change.fill = [&](ModelEdit& edit) -> Result<void> {
    for (const SavedTensor& one : changed) {
      Staging* const stage = edit.stage(one.tensor().name);
      if (stage == nullptr) continue;  // it has no bytes
      RETURN_IF_ERROR(one.of->copy_to(*stage, one.at));
    }
    return {};
  };
  auto outdated = structure_.edit(change);
  RETURN_IF_ERROR(outdated);
  tell_outdated_(*outdated);
  return {};
}

}  // namespace stfs
