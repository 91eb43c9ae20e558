// Opens, compares and commits checkpoints.
#include "fs/model/checkpoint_files.h"

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
#include "fs/write/checkpoint.h"
#include "fs/write/checkpoint_index.h"

namespace stfs {
namespace {

/// The names of temporary files: those that safetensors makes, and others that tell.
bool is_name_of_checkpoint(std::string_view name) {
  return name.find(".tmp") != std::string_view::npos || name.find(".safetensors") != std::string_view::npos;
}

/// Whether an index will name the file, with others: model-00001-of-00002.safetensors.
bool is_name_of_shard(std::string_view name) {
  return name.find("-of-") != std::string_view::npos;
}

/// Whether a name may not be taken from a file, which can still be written: the file is a mount point, or
/// another user's in a directory with the sticky bit.
bool is_refused_name(const Error& error) {
  constexpr std::array kRefusals = {EPERM, EACCES, EBUSY, EXDEV, EROFS, EOPNOTSUPP};
  return error.code == ErrorCode::System &&
         std::ranges::find(kRefusals, error.errno_value) != kRefusals.end();
}

/// Whether both have the same pairs: a program that saves what it has loaded may have them in another order.
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

/// Makes the model what the files of a checkpoint say, in one edit.
/// @param check  fails if a tensor has changed since its bytes were compared.
Result<void> edit_to(const Files& files, ModelParts& parts, StructureEdits& structure,
                     const std::function<Result<void>()>& check, std::vector<Stale>& found) {
  StructureChange change;
  std::vector<std::string> missing;
  for (std::uint32_t at = 0; at < parts.model->tensors().size(); ++at) {
    const std::string_view name = parts.model->tensors()[at].name;
    const auto saved = find_saved(files, name);
    if (!saved) missing.emplace_back(name);
    if (saved && !saved->is_changed()) continue;
    const TensorId tensor = parts.model->ids().of(at);
    if (saved && saved->saved().same && parts.model->is_of_base(parts.model->place(at).shard)) {
      change.ids.emplace(name, tensor);  // only its bytes are new
      found.push_back(parts.stale(InodeTable::ino_of_tensor(tensor), Stale::What::Content));
    } else {
      change.touched.push_back(tensor);
    }
  }
  const std::vector<SavedTensor> changed = changed_in(files);
  change.apply = [&](ModelEdit& edit) -> Result<void> {
    if (auto same = check(); !same) return same;
    for (const std::string& name : missing) {
      if (auto removed = edit.remove(name); !removed) return removed;
    }
    for (const SavedTensor& one : changed) {
      const Tensor tensor = one.tensor();
      auto put = edit.put(std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()});
      if (!put) return put;
    }
    const Metadata before = parts.model->metadata();
    for (const auto& [key, value] : before) {
      const bool is_kept = std::ranges::any_of(
          files, [&](const Checkpoint* file) { return file->header().metadata.find(key).has_value(); });
      if (is_kept) continue;
      if (auto removed = edit.set_metadata(key, std::nullopt); !removed) return removed;
    }
    for (const Checkpoint* const file : files) {
      for (const auto& [key, value] : file->header().metadata) {
        if (auto set = edit.set_metadata(key, std::string(value)); !set) return set;
      }
    }
    return {};
  };
  change.fill = [&](ModelEdit& edit) -> Result<void> {
    for (const SavedTensor& one : changed) {
      Staging* const stage = edit.stage(one.tensor().name);
      if (stage == nullptr) continue;  // it has no bytes
      if (auto copied = one.of->copy_to(*stage, one.at); !copied) return copied;
    }
    return {};
  };
  auto outdated = structure.edit(change);
  if (!outdated) return pass_on(std::move(outdated));
  parts.tell_outdated(*outdated);
  return {};
}

tl::unexpected<Error> refuse_shards(std::string why) {
  return fail(ErrorCode::WrongSize, EINVAL, "the checkpoint is not saved: " + std::move(why));
}

/// A file of a checkpoint, with its content locked. Its end unlocks before it may destroy the content.
struct LockedDraft {
  explicit LockedDraft(Drafts::Draft its) : draft(std::move(its)), lock(draft.content->mutex) {}
  Drafts::Draft draft;
  std::unique_lock<ContentLock> lock;
};

/// The files that an index names: written beside it, whole, and with exactly its tensors.
Result<std::vector<LockedDraft>> shards_of(const ModelIndex& index, const ModelParts& parts, Ino directory) {
  std::vector<LockedDraft> shards;
  std::uint64_t tensors = 0;
  for (const std::string& name : index.shards()) {
    auto draft = parts.drafts.find(directory, name);
    if (!draft || draft->content->made()->checkpoint() == nullptr)
      return refuse_shards(fmt::format("its index names {}, which was not written before", in_quotes(name)));
    const PendingContent& content = *shards.emplace_back(std::move(*draft)).draft.content;
    if (content.failure) return tl::unexpected(*content.failure);
    const Checkpoint& saved = *content.made()->checkpoint();
    if (auto whole = saved.check(); !whole) return pass_on(std::move(whole));
    tensors += saved.header().tensors.size();
  }
  for (std::uint32_t at = 0; at < index.size(); ++at) {
    const auto [tensor, shard] = index[at];
    if (shards[shard].draft.content->made()->checkpoint()->header().tensors.find(tensor)) continue;
    return refuse_shards(fmt::format("tensor {} is not in {}, which its index names", in_quotes(tensor),
                                     in_quotes(index.shards()[shard])));
  }
  if (tensors != index.size()) {
    return refuse_shards(
        fmt::format("its files have {} tensors, and its index names {}", tensors, index.size()));
  }
  return shards;
}

/// Drops a file of an earlier save that no index has saved, if no program has it open: a new one takes its
/// name.
void drop_unsaved(ModelParts& parts, Ino directory, std::string_view name) {
  const auto before = parts.drafts.find(directory, name);
  if (!before) return;
  const std::scoped_lock lock(before->content->mutex);
  if (before->content->descriptors == 0) parts.drafts.remove(before->ino);
}

}  // namespace

bool CheckpointFiles::takes(std::string_view name) {
  // Temporary names may have something before the name and behind it.
  const std::size_t dot = name.find(kArchiveSuffix);
  std::string_view stem = name.substr(0, dot == std::string_view::npos ? 0 : dot);
  while (stem.starts_with('.')) stem.remove_prefix(1);
  return name.starts_with(".tmp") || stem == "model" || (stem.starts_with("model") && is_name_of_shard(stem));
}

std::unique_ptr<Checkpoint> CheckpointFiles::make(bool waits_for_name, bool is_shard) const {
  return std::make_unique<Checkpoint>(
      parts_.model, parts_.reader, parts_.states, parts_.archive_for_new(), waits_for_name,
      [this, is_shard](const Checkpoint& saved) -> Result<void> {
        if (is_shard) return fail(ErrorCode::InvalidArgument, EOPNOTSUPP, "it has several files");
        return check_rewriting(saved);
      });
}

Result<OpenFile*> CheckpointFiles::open(const Node& node, int flags, pid_t opener) {
  if (!parts_.options.allows_edits) return fail(ErrorCode::ReadOnly, EROFS, "views are read-only");
  if (auto editable = parts_.check_editable(); !editable) return tl::unexpected(editable.error());
  if ((flags & O_ACCMODE) != O_WRONLY)
    return fail(ErrorCode::ReadOnly, EROFS, "a checkpoint is written as a whole: open it for writing only");
  auto content =
      std::make_shared<PendingContent>(parts_.model, TensorId{~std::uint32_t{0}}, make(false, false));
  const bool is_alone = parts_.drafts.add(
      {.ino = node.ino, .directory = 0, .file_name = std::to_string(node.ino), .content = content});
  if (!is_alone) return fail(ErrorCode::Busy, EBUSY, "another program is writing a checkpoint");
  return parts_.add_open(node.ino, flags, opener, FileKind::New, std::move(content));
}

Result<CreatedFile> CheckpointFiles::create(Ino directory, std::string_view name, int flags, pid_t opener) {
  if (!is_name_of_checkpoint(name)) {
    return fail(ErrorCode::InvalidArgument, parts_.options.is_read_only ? EROFS : EPERM,
                "only a checkpoint can be made here, under a name such as .tmp1 or x.safetensors");
  }
  if (auto editable = parts_.check_editable(); !editable) return tl::unexpected(editable.error());
  const Ino ino = InodeTable::ino_of_tensor(parts_.give_id());
  std::unique_ptr<NewContent> made;
  if (name.ends_with(kModelIndexSuffix)) {
    made = std::make_unique<CheckpointIndex>();
  } else {
    made = make(true, is_name_of_shard(name));
  }
  auto content = std::make_shared<PendingContent>(parts_.model, InodeTable::tensor(ino), std::move(made));
  if (!parts_.drafts.add(
          {.ino = ino, .directory = directory, .file_name = std::string(name), .content = content}))
    return fail(ErrorCode::Busy, EBUSY, "another program is making this file");
  auto shown = stats_.of(parts_.resolve(ino));
  if (!shown) return pass_on(std::move(shown));
  return CreatedFile{*shown, parts_.add_open(ino, flags, opener, FileKind::New, std::move(content))};
}

Result<Outdated> CheckpointFiles::rename(Ino directory, std::string_view name, Ino new_directory,
                                         std::string_view new_name) {
  const auto draft = parts_.drafts.find(directory, name);
  const auto target = parts_.directory_of(new_directory).find(new_directory, new_name);
  if (draft && !target && new_directory == PretrainedDirectory::kDirectory && !takes(new_name)) {
    return fail(
        ErrorCode::InvalidArgument, EPERM,
        "is no name of the model, and a checkpoint that was written under a temporary name is none of "
        "another file: write it beside the archive");
  }
  if (draft && !target && is_name_of_checkpoint(new_name)) {
    const bool is_other = directory != new_directory || name != new_name;
    if (is_other) drop_unsaved(parts_, new_directory, new_name);
    if (parts_.drafts.rename(draft->ino, new_directory, new_name)) return Outdated{};
    return fail(ErrorCode::Busy, EBUSY, "another program is making this file");
  }
  if (!draft || !target || !Views::is_archive(*target)) {
    return fail(ErrorCode::InvalidArgument, EPERM,
                "here only a checkpoint can be renamed, to the name of the whole model");
  }
  const std::scoped_lock lock(draft->content->mutex);
  if (draft->content->failure) return tl::unexpected(*draft->content->failure);
  if (draft->content->made()->checkpoint() == nullptr)
    return fail(ErrorCode::InvalidArgument, EPERM, "an index of shards can't be renamed to the model");
  Checkpoint& saved = *draft->content->made()->checkpoint();
  if (auto whole = saved.check(); !whole) {
    whole.error().errno_value = ENODATA;  // as for a transaction: mv(1) misreads EINVAL
    return pass_on(std::move(whole));
  }
  auto committed = commit(*draft->content);
  if (!committed) return pass_on(std::move(committed));
  parts_.drafts.remove(draft->ino);
  return committed;
}

Result<Outdated> CheckpointFiles::commit(PendingContent& content) {
  const auto pin = parts_.epochs.pin();
  Checkpoint* const saved = content.made()->checkpoint();
  Outdated found;
  auto committed = saved == nullptr ? commit_shards(content, found) : commit_whole(*saved, found);
  if (!committed) {
    for (const Stale& one : found.stale) parts_.forget(one);
    if (!found.entries.empty()) parts_.tell_outdated({.stale = {}, .entries = std::move(found.entries)});
    return pass_on(std::move(committed));
  }
  content.note_committed();
  return found;
}

Result<void> CheckpointFiles::commit_shards(PendingContent& content, Outdated& found) {
  const auto parsed = parse_model_index(dynamic_cast<CheckpointIndex&>(*content.made()).text());
  const auto own = parts_.drafts.find(InodeTable::ino_of_tensor(content.tensor()));
  if (!parsed) return tl::unexpected(parsed.error());
  if (!own) return refuse_shards("its index was deleted");
  auto shards = shards_of(*parsed, parts_, own->directory);
  if (!shards) return pass_on(std::move(shards));
  Files files;
  for (const auto& [shard, lock] : *shards) files.push_back(shard.content->made()->checkpoint());
  const auto check = [&]() -> Result<void> {
    for (const Checkpoint* const file : files) {
      if (auto same = check_unchanged(*file); !same) return same;
    }
    return {};
  };
  if (auto edited = edit_to(files, parts_, structure_, check, found.stale); !edited) return edited;
  log::info("{}: checkpoint of {} files saved: {} of {} tensors differed", parts_.model->path().string(),
            files.size(), changed_in(files).size(), parsed->size());
  for (const auto& [shard, lock] : *shards) {
    shard.content->note_committed();
    parts_.drafts.remove(shard.ino);
  }
  return {};
}

Result<void> CheckpointFiles::commit_whole(Checkpoint& saved, Outdated& found) {
  if (saved.rewritten() != nullptr) {
    const auto replaced = replace(saved, found);
    if (!replaced) return tl::unexpected(replaced.error());
    if (*replaced) return {};
  }
  const TensorIndex& tensors = saved.header().tensors;
  const Model& model = *parts_.model;
  std::vector<std::uint32_t> changed;
  bool is_edit = saved.rewritten() != nullptr || !is_same(saved.header().metadata, model.metadata()) ||
                 tensors.size() != model.tensors().size();
  for (std::uint32_t at = 0; at < tensors.size(); ++at) {
    is_edit = is_edit || !saved.saved(at).same;
    if (saved.is_changed(at)) changed.push_back(at);
  }
  is_edit = is_edit || (saved.group() != nullptr && saved.group()->has_copies());
  auto committed = is_edit ? edit(saved, found.stale) : patch(saved, changed, found.stale);
  if (!committed) return committed;
  log::info("{}: checkpoint saved: {} of {} tensors differed", parts_.model->path().string(), changed.size(),
            tensors.size());
  return {};
}

Result<void> CheckpointFiles::check_rewriting(const Checkpoint& saved) const {
  const auto no = [](std::string why) {
    return fail(ErrorCode::InvalidArgument, EOPNOTSUPP, std::move(why));
  };
  const Model& model = *parts_.model;
  if (!parts_.show_replacement) return no("this file system can't show another archive in its place");
  if (model.is_sharded()) return no("the model has several files");
  if (model.delta()) return no("the mount has a delta");
  if (parts_.transactions.is_any_open()) return no("a transaction is open");
  bool is_alone = true;
  parts_.open_files.visit([&](const OpenFile& file) {
    const NewContent* const made = file.content->made();
    is_alone = is_alone && made != nullptr && made == static_cast<const NewContent*>(&saved);
  });
  return is_alone ? Result<void>() : no("a program has another file of the model open for writing");
}

Result<bool> CheckpointFiles::replace(Checkpoint& saved, Outdated& found) {
  const std::string path = parts_.model->path().string();
  const auto in_place = [&](const Error& why) {
    log::info("{}: a checkpoint of which most bytes differ is saved in place: {}", path, why.message);
    return false;
  };
  if (const auto still = check_rewriting(saved); !still) return in_place(still.error());
  const Durability durability = parts_.archive_for_new().durability(parts_.options.commit.durability);
  if (auto synced = saved.sync_rewritten(durability); !synced) return pass_on(std::move(synced));
  Committer& committer = parts_.committers.of(0);
  const auto check = [&] { return check_unchanged(saved); };
  bool is_replaced = false;
  auto done = structure_.following([&] {
    ShardWriter writer(parts_, foreign_, {0});
    writer.set_check(check);
    while (writer.take_turns()) {
      writer.end_attempt(guard_memory([&]() -> Result<void> {
        committer.retire_journal();
        const auto options = writer.options(0);
        if (!options) return tl::unexpected(options.error());
        return replace_archive(parts_.archive_for_new(), *saved.rewritten(), *options, check, is_replaced);
      }));
    }
    for (const auto& [shard, others] : writer.foreign()) found.stale.push_back(others);
    return std::move(writer.result());
  });
  if (!done && !is_replaced && is_refused_name(done.error())) return in_place(done.error());
  if (!is_replaced) return pass_on(std::move(done));
  {
    // A commit may have kept a journal for the next one: there is none.
    const std::scoped_lock turn(committer.turn);
    committer.retire_journal();
  }
  Outdated shown = parts_.show_replacement();
  std::ranges::move(shown.stale, std::back_inserter(found.stale));
  found.entries = std::move(shown.entries);
  if (!done) return pass_on(std::move(done));
  parts_.note_commit();
  log::info("{}: checkpoint saved in a new file: {} tensors", path, saved.header().tensors.size());
  return true;
}

Result<void> CheckpointFiles::check_unchanged(const Checkpoint& saved) const {
  const TensorIndex& tensors = saved.header().tensors;
  for (std::uint32_t at = 0; at < tensors.size(); ++at) {
    const auto same = saved.saved(at).same;
    if (!same) continue;
    const bool is_there = parts_.model->ids().position(*same).has_value();
    if (is_there && parts_.states.of(*same).noted == saved.saved(at).generation) continue;
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                fmt::format("tensor {} was changed while the checkpoint was written: save it again",
                            in_quotes(tensors[at].name)));
  }
  return {};
}

Result<void> CheckpointFiles::patch(const Checkpoint& saved, const std::vector<std::uint32_t>& changed,
                                    std::vector<Stale>& found) {
  if (changed.empty()) return check_unchanged(saved);
  Committers::Shards shards;
  for (const std::uint32_t at : changed) shards.insert(parts_.model->place(*saved.saved(at).same).shard);
  const auto check = [&] { return check_unchanged(saved); };
  auto done = structure_.following([&] {
    ShardWriter writer(parts_, foreign_, shards);
    writer.set_check(check);
    while (writer.take_turns()) {
      writer.end_attempt(guard_memory([&]() -> Result<void> {
        if (auto same = check(); !same) return same;
        auto committed = saved.group()->commit(writer.options_of(), parts_.lock_of());
        if (!committed) return committed;
        for (const std::uint32_t at : changed) {
          const TensorId tensor = *saved.saved(at).same;
          const std::int64_t mtime_ns = parts_.model->archive_of(tensor).identity().mtime_ns;
          parts_.states.note_commit(tensor, mtime_ns, std::nullopt);
        }
        return committed;
      }));
    }
    for (const auto& [shard, others] : writer.foreign()) parts_.forget(others);
    return std::move(writer.result());
  });
  // After a failure behind the commit point, reads show the new bytes, out of the journal.
  for (const std::uint32_t at : changed)
    found.push_back(parts_.stale(InodeTable::ino_of_tensor(*saved.saved(at).same), Stale::What::Content));
  if (done) parts_.note_commit();
  return done;
}

Result<void> CheckpointFiles::edit(const Checkpoint& saved, std::vector<Stale>& found) {
  return edit_to(
      {&saved}, parts_, structure_, [&] { return check_unchanged(saved); }, found);
}

}  // namespace stfs
