// Commits edits, and shows the models that follow.
#include "fs/model/structure_edits.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "core/commit/edit_space.h"
#include "core/format/json_string.h"
#include "fs/base/log.h"
#include "fs/base/survive.h"

namespace stfs {
namespace {

/// Counts a call as waiting, or running, while it lives.
class Counted {
 public:
  explicit Counted(std::atomic<unsigned>& count) : count_(count) { ++count_; }
  ~Counted() { --count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<unsigned>& count_;
};

/// The edit is in the archive, and showing it has failed: the watcher opens the model anew.
void give_up_showing(ModelParts& parts, const ModelEdit& edit, const Error& why) {
  for (const auto& [shard, layout] : edit.changed()) parts.reader.note_broken(shard);
  survive("edit", [&] {
    log::error("{}: edited, but this mount can't show it: {}", parts.model->path().string(), why.message);
  });
}

/// Call when a commit to the shard has failed. Behind its commit point it may have written over places that
/// the present version names: then no tensor is read there until the model is opened anew, except those that
/// the present header leaves in their places.
void note_half_done(ModelParts& parts, std::uint32_t shard) {
  const auto found = guard_memory([&] { return parts.model->archive(shard).check_for_change(); });
  if (found && !found->is_broken && !found->is_being_edited) return;
  parts.reader.note_broken(shard, found && !found->is_being_edited ? found->header : nullptr);
}

}  // namespace

bool StructureEdits::has_staged_place(TensorId tensor) const {
  bool has_stage = parts_.transactions.needs_place(tensor);
  parts_.open_files.visit([&](const OpenFile& file) {
    const PendingContent& content = *file.content;
    if (file.kind == FileKind::Grouped) return;  // the transaction has told
    has_stage = has_stage || (content.tensor() == tensor && content.has_stage() && content.made() == nullptr);
  });
  return has_stage;
}

bool StructureEdits::is_open(TensorId removed) const {
  return parts_.lookups[number_of(removed)] != 0 || parts_.views.shows(removed) ||
         parts_.transactions.holds(removed);
}

bool StructureEdits::drop_unread() {
  std::set<TensorId> written;
  parts_.open_files.visit([&](const OpenFile& file) { written.insert(file.content->tensor()); });
  std::set<TensorId> gone;
  for (const auto& [tensor, removed] : parts_.model->removed()) {
    if (is_open(tensor) || written.contains(tensor)) continue;
    gone.insert(tensor);
    if (!parts_.model->is_of_base(removed.place.shard)) left_shards_.insert(removed.place.shard);
  }
  if (gone.empty() || !show_without(gone)) return false;
  // A reader finds a tensor under its lock.
  parts_.reader.wait_for_readers();
  return true;
}

Result<void> StructureEdits::show_without(const std::set<TensorId>& gone) {
  auto next = parts_.model->next({.id_of_new = [this](std::string_view) { return parts_.give_id(); },
                                  .is_open = [&](TensorId tensor) { return !gone.contains(tensor); },
                                  .end_of_ids = [this] { return parts_.next_id.load(); }});
  if (!next) return pass_on(std::move(next));
  return guard_memory([&]() REQUIRES(mutex_) -> Result<void> {
    show(std::move(*next), false);
    return {};
  });
}

bool StructureEdits::is_read_elsewhere() const {
  return std::ranges::any_of(shards_to_edit(), [this](std::uint32_t shard) {
    return parts_.model->archive(shard).has_other_readers();
  });
}

bool StructureEdits::is_being_written(TensorId tensor) const {
  bool is_written = parts_.transactions.has(tensor);
  parts_.open_files.visit([&](const OpenFile& file) {
    is_written = is_written || (file.content->tensor() == tensor && file.content->has_stage());
  });
  return is_written;
}

Result<Outdated> StructureEdits::edit(const StructureChange& change) {
  const auto allowed = change.is_patch ? parts_.check_writable() : parts_.check_editable();
  if (!allowed) return tl::unexpected(allowed.error());
  const Counted waits(waiting_edits_);
  const MutexLock structure(mutex_);
  Outdated outdated;
  const auto attempt = [&]() REQUIRES(mutex_) -> Result<void> {
    auto edited = edit_once(change);
    if (!edited) return pass_on(std::move(edited));
    outdated = std::move(*edited);
    return {};
  };
  auto done = following(attempt, [this]() REQUIRES(mutex_) { return follow_with_mutex(); });
  if (done) return outdated;
  if (done.error().code == ErrorCode::ArchiveChanged) {
    for (const std::uint32_t shard : shards_to_edit()) note_half_done(parts_, shard);
  }
  return pass_on(std::move(done));
}

Committers::Shards StructureEdits::shards_to_edit() const {
  Committers::Shards shards;
  for (std::uint32_t shard = 0; shard < parts_.model->shards().size(); ++shard) {
    if (parts_.model->shards()[shard].archive && !parts_.model->is_of_base(shard)) shards.insert(shard);
  }
  return shards;
}

Result<Outdated> StructureEdits::edit_once(const StructureChange& change) {
  const Epochs::Pin pin = parts_.epochs.pin();
  Outdated outdated;
  ShardWriter writer(parts_, foreign_, shards_to_edit());
  if (change.check) writer.set_check(change.check);
  while (writer.take_turns())
    writer.end_attempt(
        guard_memory([&]() REQUIRES(mutex_) { return try_with_room(change, writer, outdated); }));
  for (const auto& [shard, others] : writer.foreign()) outdated.stale.push_back(others);
  if (!writer.result()) {
    for (const Stale& one : outdated.stale) parts_.forget(one);
    return tl::unexpected(std::move(writer.result()).error());
  }
  parts_.note_commit();
  return outdated;
}

Result<void> StructureEdits::try_with_room(const StructureChange& change, ShardWriter& writer,
                                           Outdated& outdated) {
  for (const std::uint32_t shard : shards_to_edit()) parts_.committers.of(shard).retire_journal();
  bool needs_room = false;
  auto tried = try_edit(change, writer.options_of(), outdated, needs_room);
  if (!needs_room) return tried;
  if (drop_unread()) tried = try_edit(change, writer.options_of(), outdated, needs_room);
  if (!needs_room) return tried;
  // The bytes of a deleted tensor may be in the header's way, and must stay.
  if (auto made = make_room(change, writer.options_of()); !made) {
    if (made.error().code != ErrorCode::Busy) return made;
    // A tool that reads the archive may be about to end. A mount that has it open is not. The kernel forgets
    // a deleted tensor some time after the last program has closed it.
    constexpr std::chrono::seconds kPatience{1};
    if (writer.has_waited() > kPatience && (parts_.model->removed().empty() || is_read_elsewhere()))
      tried.error().code = ErrorCode::InvalidArgument;
    return tried;
  }
  return try_edit(change, writer.options_of(), outdated, needs_room);
}

Result<void> StructureEdits::try_edit(const StructureChange& change,
                                      const TransactionGroup::OptionsOf& options_of, Outdated& outdated,
                                      bool& needs_room) {
  needs_room = false;
  auto edit = ModelEdit::of(*parts_.model);
  if (!edit) return pass_on(std::move(edit));
  edit->keep_deleted();
  if (auto changed = change.apply(*edit); !changed) return changed;
  if (edit->is_empty()) return {};
  if (auto begun = edit->begin(parts_.options.commit.uses_locks); !begun) {
    needs_room = begun.error().code == ErrorCode::Busy;
    return begun;
  }
  if (auto filled = change.fill(*edit); !filled) return filled;
  Outdated found;
  const InodeTable& before = parts_.tree.table();
  std::set<Ino> directories = {kRootIno};
  const auto forget_file = [&](Ino ino) {
    if (!before.exists(ino)) return;
    directories.insert(before.parent(ino));
    found.entries.emplace_back(parts_.space.in_mount(before.parent(ino)), before.file_name(ino));
  };
  for (const TensorId tensor : change.touched) {
    for (auto& [directory, name] : parts_.views.drop_names(tensor))
      found.entries.emplace_back(parts_.space.in_mount(directory), std::move(name));
    forget_file(InodeTable::ino_of_tensor(tensor));
  }
  // The kernel would keep the files of the version before, and with them the bytes of deleted tensors.
  for (const FixedEntry& entry : Views::kEntries) {
    if (Views::whole(entry.ino)) found.entries.emplace_back(parts_.space.in_mount(kHiddenIno), entry.name);
  }
  std::set<TensorId> removed_before;
  for (const auto& [tensor, removed] : parts_.model->removed()) removed_before.insert(tensor);
  if (auto committed = commit_edit(*edit, change, options_of); !committed) return committed;
  const auto told = guard_memory([&]() -> Result<void> {
    // Also a tensor that came under the name of a new one after the change was made.
    for (const auto& [tensor, removed] : parts_.model->removed()) {
      const bool is_known = removed_before.contains(tensor) ||
                            std::ranges::find(change.touched, tensor) != change.touched.end();
      if (!is_known) forget_file(InodeTable::ino_of_tensor(tensor));
    }
    const InodeTable& after = parts_.tree.table();
    for (const TensorId tensor : change.touched) {
      const Ino ino = InodeTable::ino_of_tensor(tensor);
      found.stale.push_back(parts_.stale(ino, Stale::What::Attributes));
      for (const Stale& view : parts_.views.stale(tensor, tensor))
        found.stale.push_back(parts_.stale(view.first, view.last, view.what));
      if (after.exists(ino)) directories.insert(after.parent(ino));
    }
    for (const Ino directory : directories) {
      if (before.exists(directory)) found.stale.push_back(parts_.stale(directory, Stale::What::Content));
    }
    found.stale.push_back(parts_.stale(Views::kNpy, Stale::What::Content));
    found.stale.push_back(parts_.stale(Views::kFloat32, Stale::What::Content));
    return {};
  });
  if (told) {
    outdated = std::move(found);
  } else {
    give_up_showing(parts_, *edit, told.error());
  }
  return {};
}

Result<void> StructureEdits::make_room(const StructureChange& change,
                                       const TransactionGroup::OptionsOf& options_of) {
  // The shards of the change move their first tensors, and nothing else.
  auto edit = ModelEdit::of(*parts_.model);
  if (!edit) return pass_on(std::move(edit));
  edit->keep_deleted();
  for (const TensorId tensor : change.touched) edit->make_room(parts_.model->place(tensor).shard);
  for (const auto& [name, tensor] : change.ids) {
    if (parts_.model->ids().position(tensor)) edit->make_room(parts_.model->place(tensor).shard);
  }
  if (edit->is_empty()) return fail(ErrorCode::Busy, EBUSY, "nothing can move");
  if (auto begun = edit->begin(parts_.options.commit.uses_locks); !begun) return begun;
  return commit_edit(*edit, {.touched = {}, .apply = {}}, options_of);
}

Result<void> StructureEdits::commit_edit(ModelEdit& edit, const StructureChange& change,
                                         const TransactionGroup::OptionsOf& options_of) {
  std::vector<TensorPlace> moved = edit.moved();
  std::ranges::sort(moved);
  for (std::uint32_t at = 0; at < parts_.model->ids().size() && !moved.empty(); ++at) {
    const TensorId tensor = parts_.model->ids().of(at);
    if (!std::ranges::binary_search(moved, parts_.model->place(at)) || !has_staged_place(tensor)) continue;
    return fail(ErrorCode::Busy, EBUSY,
                fmt::format("tensor {} has to move, and a program is writing it",
                            in_quotes(parts_.model->tensor(tensor).name)));
  }
  for (const ModelEdit::Changed& changed : edit.changed()) ++edited_shards_[changed.shard];
  if (auto prepared = parts_.views.prepare_next(); !prepared) return prepared;
  if (auto committed = edit.commit(options_of, parts_.lock_of()); !committed) {
    // Else another process is in an edit, or has made one that can be followed.
    const ErrorCode why = committed.error().code;
    const bool is_own = why != ErrorCode::ArchiveChanged && why != ErrorCode::Busy;
    for (const ModelEdit::Changed& changed : edit.changed()) {
      if (is_own) note_half_done(parts_, changed.shard);
    }
    return committed;
  }
  // From here on the edit is done, whatever happens.
  const bool is_adopted = std::ranges::all_of(edit.changed(), [&](const ModelEdit::Changed& changed) {
    return parts_.model->archive(changed.shard).version() != parts_.model->shards()[changed.shard].version;
  });
  if (parts_.model->is_index_changed()) has_new_index_ = true;
  const auto make_next = [&] {
    return parts_.model->next({.id_of_new =
                                   [&](std::string_view name) {
                                     const auto given = change.ids.find(std::string(name));
                                     return given == change.ids.end() ? parts_.give_id() : given->second;
                                   },
                               .is_open = [](TensorId) { return true; },
                               .end_of_ids = [this] { return parts_.next_id.load(); }});
  };
  const auto shown = guard_memory([&]() REQUIRES(mutex_) -> Result<void> {
    auto next = make_next();
    if (!next) return pass_on(std::move(next));
    if (!is_adopted)
      return fail(ErrorCode::ArchiveChanged, EIO, "the store failed the look at the new header");
    if (change.renumber) change.renumber();
    const Model& before = *parts_.model;  // pinned
    const bool keeps_ids = std::ranges::any_of(
        change.ids, [&](const auto& given) { return before.ids().position(given.second).has_value(); });
    show(std::move(*next), true);
    end_moves(edit);
    if (keeps_ids) parts_.reader.wait_for_readers();
    for (const auto& [name, tensor] : change.ids) {
      if (before.ids().position(tensor) && !before.is_of_base(before.place(tensor).shard))
        left_shards_.insert(before.place(tensor).shard);
    }
    for (const auto& [shard, layout] : edit.changed()) {
      const std::int64_t mtime_ns = parts_.model->reader(shard).identity().mtime_ns;
      const auto note = [&, at = shard](TensorId tensor) {
        if (parts_.model->place(tensor).shard == at)
          parts_.states.note_commit(tensor, mtime_ns, std::nullopt);
      };
      std::ranges::for_each(change.touched, note);
      for (const auto& [name, tensor] : change.ids) note(tensor);
    }
    return {};
  });
  if (!shown) give_up_showing(parts_, edit, shown.error());
  return {};
}

void StructureEdits::show(std::shared_ptr<Model> next, bool is_edited) {
  parts_.grow(next->ids().end());
  Epochs::Replacement replaced(parts_.epochs);
  auto names = parts_.tree.next(*next);
  auto views = parts_.views.next(*names, is_edited ? next : nullptr);
  // Nothing fails from here on.
  replaced.keep(parts_.model.replace(std::move(next)));
  replaced.keep(parts_.tree.show(std::move(names)));
  replaced.keep(parts_.views.show(std::move(views)));
  ++ModelParts::changes;
  last_edit_ = replaced.end();
}

Result<void> StructureEdits::change_directories(const std::function<Result<void>()>& change) {
  const Counted waits(waiting_edits_);
  const Epochs::Pin pin = parts_.epochs.pin();
  const MutexLock structure(mutex_);
  if (auto changed = change(); !changed) return changed;
  show(parts_.model.owner(), false);
  return {};
}

void StructureEdits::end_moves(const ModelEdit& edit) {
  std::set<std::uint32_t> shards;
  for (const TensorPlace moved : edit.moved()) shards.insert(moved.shard);
  if (shards.empty()) return;
  // A reader finds a tensor's place under its lock. Those who found the old one have ended after this.
  parts_.reader.wait_for_readers();
  for (const std::uint32_t shard : shards) parts_.model->archive(shard).end_move();
}

void StructureEdits::reclaim(bool is_end) {
  const Epochs::Pin pin = parts_.epochs.pin();
  const MutexLock structure(mutex_);
  if (parts_.model->removed().empty() && left_shards_.empty()) return;
  // Calls from before the edit may be about to use a tensor that no look-up holds.
  if (!is_end && !parts_.epochs.has_ended(last_edit_)) return parts_.wake_janitor();
  std::set<TensorId> gone;
  std::map<std::uint32_t, std::vector<ByteRange>> kept;  // by shard that has something to free
  for (const auto& [tensor, removed] : parts_.model->removed()) {
    if (is_open(tensor) && !is_end) continue;
    gone.insert(tensor);
    if (!parts_.model->is_of_base(removed.place.shard)) left_shards_.insert(removed.place.shard);
  }
  for (const std::uint32_t shard : left_shards_) kept[shard];
  for (const auto& [tensor, removed] : parts_.model->removed()) {
    const auto shard = kept.find(removed.place.shard);
    if (shard != kept.end() && !gone.contains(tensor)) shard->second.push_back(removed.file_range);
  }
  for (const auto& [shard, ranges] : kept) {
    ShardWriter writer(parts_, foreign_, {shard});
    Result<void> done;
    // Not again and again: another program may have the archive open for days.
    while (writer.take_turns()) {
      done = guard_memory([&, at = shard, &ranges = ranges]() -> Result<void> {
        parts_.committers.of(at).retire_journal();
        auto options = writer.options(at);
        return options ? give_back_fillers(parts_.model->archive(at), ranges, *options)
                       : tl::unexpected(options.error());
      });
      writer.end_attempt({});
    }
    for (const auto& [changed, others] : writer.foreign()) parts_.forget(others);
    // Else the next call tries again: their space is not free yet, but edits may use it.
    if (done) left_shards_.erase(shard);
  }
  // Without memory the next tidy() tries again.
  if (!gone.empty()) static_cast<void>(show_without(gone));
}

bool StructureEdits::is_index_changed() {
  const MutexLock structure(mutex_);
  return parts_.model->is_index_changed();
}

}  // namespace stfs
