// Edits of the structure: deletes, renames, makes and retypes tensors, and shows the model that follows
// (filesystem.h).
//
// An edit has the turns of all shards. Its commit gives each archive its next version; Model::next() makes
// the next model of them. Tensors keep their ids, and so their inode numbers. Deleted ones stay in
// Model::removed() with their bytes until no program has them open.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "core/commit/freed_space.h"
#include "core/format/json_string.h"
#include "fs/base/log.h"
#include "fs/model/filesystem.h"

namespace stfs {

Result<void> Filesystem::check_editable() const {
  if (!options_.is_read_only && !options_.allows_edits) {
    return fail(ErrorCode::InvalidArgument, EPERM,
                "tensors can't be made, deleted, renamed or retyped: mounted with edit=off");
  }
  return check_writable();
}

Result<void> Filesystem::check_writable() const {
  if (options_.is_read_only) return fail(ErrorCode::ReadOnly, EROFS, "mounted read-only");
  if (is_refused_ || reader_.is_any_broken())
    return fail(ErrorCode::ArchiveChanged, ESTALE, "another program has changed the model");
  return {};
}

TensorId Filesystem::give_id() {
  const std::uint32_t number = next_id_++;
  for (auto* const marks : {&may_be_cached_, &may_be_known_}) marks->grow(number + 1);
  lookups_.grow(number + 1);
  return TensorId{number};
}

bool Filesystem::has_staged_place(TensorId tensor) const {
  bool has_stage = transactions_.needs_place(tensor);
  open_files_.visit([&](const OpenFile& file) {
    const PendingContent& content = *file.content;
    if (file.kind == FileKind::Grouped) return;  // as above
    has_stage = has_stage || (content.tensor() == tensor && content.has_stage() && content.made() == nullptr);
  });
  return has_stage;
}

bool Filesystem::is_being_written(TensorId tensor) const {
  bool is_written = transactions_.has(tensor);
  open_files_.visit([&](const OpenFile& file) {
    is_written = is_written || (file.content->tensor() == tensor && file.content->has_stage());
  });
  return is_written;
}

Result<Outdated> Filesystem::edit(const StructureChange& change) {
  const auto allowed = change.is_patch ? check_writable() : check_editable();
  if (!allowed) return tl::unexpected(allowed.error());
  const Epochs::Pin pin = epochs_.pin();
  const std::scoped_lock structure(structure_mutex_);
  Committers::Shards shards;
  for (std::uint32_t shard = 0; shard < model_->shards().size(); ++shard) {
    if (model_->shards()[shard].archive && !model_->is_of_base(shard)) shards.insert(shard);
  }
  Foreign foreign;
  Outdated outdated;
  const auto begin = std::chrono::steady_clock::now();
  auto done =
      commit_in_turn(shards, foreign, [&](const TransactionGroup::OptionsOf& options_of) -> Result<void> {
        for (const std::uint32_t shard : shards) committers_.of(shard).retire_journal();
        const auto checked = change.check ? with_check(options_of, change.check) : options_of;
        bool needs_room = false;
        auto tried = try_edit(change, checked, outdated, needs_room);
        // The bytes of a deleted tensor may be in the header's way, and must stay.
        if (!needs_room) return tried;
        if (!make_room(change, checked)) {
          // A tool that reads the archive may be about to end. A mount that has it open is not.
          constexpr std::chrono::seconds kPatience{1};
          if (std::chrono::steady_clock::now() - begin > kPatience)
            tried.error().code = ErrorCode::InvalidArgument;
          return tried;
        }
        return try_edit(change, checked, outdated, needs_room);
      });
  for (const auto& [shard, others] : foreign) {
    if (others.what != Stale::What::Nothing) outdated.stale.push_back(others);
  }
  if (!done) {
    for (const Stale& one : outdated.stale) forget_(one);
    return tl::unexpected(std::move(done).error());
  }
  note_commit_();
  return outdated;
}

Result<void> Filesystem::try_edit(const StructureChange& change,
                                  const TransactionGroup::OptionsOf& options_of, Outdated& outdated,
                                  bool& needs_room) {
  auto edit = ModelEdit::of(*model_);
  if (!edit) return pass_on(std::move(edit));
  edit->keep_deleted();
  if (auto changed = change.apply(*edit); !changed) return changed;
  if (edit->is_empty()) return {};
  if (auto begun = edit->begin(options_.commit.uses_locks); !begun) {
    needs_room = begun.error().code == ErrorCode::Busy;
    return begun;
  }
  if (auto filled = change.fill(*edit); !filled) return filled;
  Outdated found;
  const InodeTable& before = tree_.table();
  std::set<Ino> directories = {kRootIno};
  const auto forget_file = [&](Ino ino) {
    if (!before.exists(ino)) return;
    directories.insert(before.parent(ino));
    found.entries.emplace_back(space_.in_mount(before.parent(ino)), before.file_name(ino));
  };
  for (const TensorId tensor : change.touched) {
    for (auto& [directory, name] : views_.drop_names(tensor))
      found.entries.emplace_back(space_.in_mount(directory), std::move(name));
    forget_file(InodeTable::ino_of_tensor(tensor));
  }
  // The kernel would keep the files of the version before, and with them the bytes of deleted tensors.
  for (const FixedEntry& entry : Views::kEntries) {
    if (Views::whole(entry.ino)) found.entries.emplace_back(space_.in_mount(kHiddenIno), entry.name);
  }
  std::set<TensorId> removed_before;
  for (const auto& [tensor, removed] : model_->removed()) removed_before.insert(tensor);
  if (auto committed = commit_edit(*edit, change, options_of); !committed) return committed;
  // Also a tensor that came under the name of a new one after the change was made.
  for (const auto& [tensor, removed] : model_->removed()) {
    const bool is_known =
        removed_before.contains(tensor) || std::ranges::find(change.touched, tensor) != change.touched.end();
    if (!is_known) forget_file(InodeTable::ino_of_tensor(tensor));
  }
  const InodeTable& after = tree_.table();
  for (const TensorId tensor : change.touched) {
    const Ino ino = InodeTable::ino_of_tensor(tensor);
    found.stale.push_back(stale(ino, Stale::What::Attributes));
    for (const Stale& view : views_.stale(tensor, tensor))
      found.stale.push_back(stale(view.first, view.last, view.what));
    if (after.exists(ino)) directories.insert(after.parent(ino));
  }
  for (const Ino directory : directories) {
    if (before.exists(directory)) found.stale.push_back(stale(directory, Stale::What::Content));
  }
  found.stale.push_back(stale(Views::kNpy, Stale::What::Content));
  found.stale.push_back(stale(Views::kFloat32, Stale::What::Content));
  outdated = std::move(found);
  return {};
}

Result<void> Filesystem::make_room(const StructureChange& change,
                                   const TransactionGroup::OptionsOf& options_of) {
  // The shards of the change move their first tensors, and nothing else.
  auto edit = ModelEdit::of(*model_);
  if (!edit) return pass_on(std::move(edit));
  edit->keep_deleted();
  for (const TensorId tensor : change.touched) edit->make_room(model_->place(tensor).shard);
  for (const auto& [name, tensor] : change.ids) {
    if (model_->ids().position(tensor)) edit->make_room(model_->place(tensor).shard);
  }
  if (edit->is_empty()) return fail(ErrorCode::Busy, EBUSY, "nothing can move");
  if (auto begun = edit->begin(options_.commit.uses_locks); !begun) return begun;
  return commit_edit(*edit, {.touched = {}, .apply = {}}, options_of);
}

Result<void> Filesystem::commit_edit(ModelEdit& edit, const StructureChange& change,
                                     const TransactionGroup::OptionsOf& options_of) {
  const std::vector<TensorPlace> moved = edit.moved();
  for (std::uint32_t at = 0; at < model_->ids().size() && !moved.empty(); ++at) {
    const TensorId tensor = model_->ids().of(at);
    if (std::ranges::find(moved, model_->place(at)) == moved.end() || !has_staged_place(tensor)) continue;
    return fail(ErrorCode::Busy, EBUSY,
                fmt::format("tensor {} has to move, and a program is writing it",
                            in_quotes(model_->tensor(tensor).name)));
  }
  if (auto prepared = views_.prepare_next(); !prepared) return prepared;
  const auto lock_of = [this](TensorPlace place) -> ReaderWriterLock& { return reader_.lock_of(place); };
  if (auto committed = edit.commit(options_of, lock_of); !committed) return committed;
  // From here on the edit is done, whatever happens.
  const bool is_adopted = std::ranges::all_of(edit.changed(), [&](const ModelEdit::Changed& changed) {
    return model_->archive(changed.shard).version() != model_->shards()[changed.shard].version;
  });
  if (model_->is_index_changed()) has_new_index_ = true;
  auto next = model_->next({.id_of_new =
                                [&](std::string_view name) {
                                  const auto given = change.ids.find(std::string(name));
                                  return given == change.ids.end() ? give_id() : given->second;
                                },
                            .is_open = [](TensorId) { return true; },
                            .end_of_ids = [this] { return next_id_.load(); }});
  const auto shown = guard_memory([&]() -> Result<void> {
    if (!next) return pass_on(std::move(next));
    if (!is_adopted)
      return fail(ErrorCode::ArchiveChanged, EIO, "the store failed the look at the new header");
    if (change.renumber) change.renumber();
    const Model& before = *model_;  // pinned
    const bool keeps_ids = std::ranges::any_of(
        change.ids, [&](const auto& given) { return before.ids().position(given.second).has_value(); });
    show(std::move(*next), true);
    end_moves(edit);
    if (keeps_ids) reader_.wait_for_readers();
    for (const auto& [name, tensor] : change.ids) {
      if (before.ids().position(tensor) && !before.is_of_base(before.place(tensor).shard))
        left_shards_.insert(before.place(tensor).shard);
    }
    for (const auto& [shard, layout] : edit.changed()) {
      const std::int64_t mtime_ns = model_->reader(shard).identity().mtime_ns;
      const auto note = [&, at = shard](TensorId tensor) {
        if (model_->place(tensor).shard == at) states_.note_commit(tensor, mtime_ns, std::nullopt);
      };
      std::ranges::for_each(change.touched, note);
      for (const auto& [name, tensor] : change.ids) note(tensor);
    }
    return {};
  });
  if (shown) return {};
  // The watcher opens the model anew.
  log::error("{}: edited, but this mount can't show it: {}", model_->path().string(), shown.error().message);
  for (const auto& [shard, layout] : edit.changed()) reader_.note_broken(shard);
  return {};
}

void Filesystem::show(std::unique_ptr<Model> next, bool is_edited) {
  const std::uint32_t end = next->ids().end();
  may_be_cached_.grow(end);
  may_be_known_.grow(end);
  lookups_.grow(end);
  std::vector<std::shared_ptr<void>> replaced;
  replaced.push_back(model_.replace(std::move(next)));
  tree_.show(replaced);
  views_.show(replaced, is_edited);
  ++changes_;
  last_edit_ = epochs_.retire(std::move(replaced));
}

void Filesystem::end_moves(const ModelEdit& edit) {
  std::set<std::uint32_t> shards;
  for (const TensorPlace moved : edit.moved()) shards.insert(moved.shard);
  if (shards.empty()) return;
  // A reader finds a tensor's place under its lock. Those who found the old one have ended after this.
  reader_.wait_for_readers();
  for (const std::uint32_t shard : shards) model_->archive(shard).end_move();
}

void Filesystem::tidy() {
  committers_.tidy();
  reclaim(false);
}

void Filesystem::reclaim(bool is_end) {
  const Epochs::Pin pin = epochs_.pin();
  const std::scoped_lock structure(structure_mutex_);
  if (model_->removed().empty() && left_shards_.empty()) return;
  // Calls from before the edit may be about to use a tensor that no look-up holds.
  if (!is_end && !epochs_.has_ended(last_edit_)) return wake_janitor_();
  std::set<TensorId> gone;
  std::map<std::uint32_t, std::vector<ByteRange>> kept;  // by shard that has something to free
  for (const auto& [tensor, removed] : model_->removed()) {
    const bool is_open =
        lookups_[number_of(tensor)] != 0 || views_.shows(tensor) || transactions_.holds(tensor);
    if (is_open && !is_end) continue;
    gone.insert(tensor);
    if (!model_->is_of_base(removed.place.shard)) kept[removed.place.shard];
  }
  for (const std::uint32_t shard : left_shards_) kept[shard];
  for (const auto& [tensor, removed] : model_->removed()) {
    const auto shard = kept.find(removed.place.shard);
    if (shard != kept.end() && !gone.contains(tensor)) shard->second.push_back(removed.file_range);
  }
  std::set<std::uint32_t> freed;
  for (const auto& [shard, ranges] : kept) {
    Foreign foreign;
    Result<void> done;
    // Not again and again: another program may have the archive open for days.
    static_cast<void>(commit_in_turn(
        {shard}, foreign, [&, at = shard](const TransactionGroup::OptionsOf& options_of) -> Result<void> {
          committers_.of(at).retire_journal();
          auto options = options_of(at);
          done = options ? give_back_fillers(model_->archive(at), ranges, *options)
                         : tl::unexpected(options.error());
          return {};
        }));
    for (const auto& [changed, others] : foreign) {
      if (others.what != Stale::What::Nothing) forget_(others);
    }
    if (!done) continue;
    freed.insert(shard);
    left_shards_.erase(shard);
  }
  const auto is_gone = [&](TensorId tensor) {
    if (!gone.contains(tensor)) return false;
    const std::uint32_t shard = model_->place(tensor).shard;
    return freed.contains(shard) || model_->is_of_base(shard);
  };
  if (std::ranges::none_of(gone, is_gone)) return;
  auto next = model_->next({.id_of_new = [this](std::string_view) { return give_id(); },
                            .is_open = [&](TensorId tensor) { return !is_gone(tensor); },
                            .end_of_ids = [this] { return next_id_.load(); }});
  // Without memory the next tidy() tries again.
  static_cast<void>(guard_memory([&]() -> Result<void> {
    if (next) show(std::move(*next), false);
    return {};
  }));
}

bool Filesystem::is_index_changed() {
  const std::scoped_lock structure(structure_mutex_);
  return model_->is_index_changed();
}

}  // namespace stfs
