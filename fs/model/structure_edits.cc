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
#include "fs/model/mounted_model.h"

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

}  // namespace

void StructureEdits::give_up_showing(const ModelEdit& edit, const Error& why) const {
  for (const auto& [shard, layout] : edit.changed()) mounted_.reader_.note_broken(shard);
  survive("edit", [&] {
    log::error("{}: edited, but this mount can't show it: {}", mounted_.model().path().string(), why.message);
  });
}

void StructureEdits::note_half_done(std::uint32_t shard) const {
  const auto found = guard_memory([&] { return mounted_.model().archive(shard).check_for_change(); });
  if (found && !found->is_broken && !found->is_being_edited) return;
  mounted_.reader_.note_broken(shard, found && !found->is_being_edited ? found->header : nullptr);
}

bool StructureEdits::has_staged_place(TensorId tensor) const {
  bool has_stage = mounted_.transactions_.needs_place(tensor);
  mounted_.open_files_.visit([&](const OpenFile& file) {
    const PendingFile& content = *file.content;
    if (file.kind == FileKind::Grouped) return;  // the transaction has told
    has_stage =
        has_stage || (content.tensor() == tensor && content.has_bytes() && content.patch() != nullptr);
  });
  return has_stage;
}

bool StructureEdits::is_open(TensorId removed) const {
  return mounted_.lookups_[number_of(removed)] != 0 || mounted_.views_.shows(removed) ||
         mounted_.transactions_.holds(removed);
}

bool StructureEdits::drop_unread() {
  std::set<TensorId> written;
  mounted_.open_files_.visit([&](const OpenFile& file) { written.insert(file.content->tensor()); });
  std::set<TensorId> gone;
  for (const auto& [tensor, removed] : mounted_.model().removed()) {
    if (is_open(tensor) || written.contains(tensor)) continue;
    gone.insert(tensor);
    if (!mounted_.model().is_of_base(removed.place.shard)) left_shards_.insert(removed.place.shard);
  }
  if (gone.empty() || !show_without(gone)) return false;
  // A reader looks up the tensor while it holds the tensor's lock.
  mounted_.reader_.wait_for_readers();
  return true;
}

Result<void> StructureEdits::show_without(const std::set<TensorId>& gone) {
  auto next = mounted_.model().next({.id_of_new = [this](std::string_view) { return mounted_.give_id(); },
                                     .is_open = [&](TensorId tensor) { return !gone.contains(tensor); },
                                     .end_of_ids = [this] { return mounted_.next_id_.load(); }});
  RETURN_IF_ERROR(next);
  return guard_memory([&]() REQUIRES(mutex_) -> Result<void> {
    show(std::move(*next), false);
    return {};
  });
}

bool StructureEdits::is_read_elsewhere() const {
  return std::ranges::any_of(shards_to_edit(), [this](std::uint32_t shard) {
    return mounted_.model().archive(shard).has_other_readers();
  });
}

bool StructureEdits::is_being_written(TensorId tensor) const {
  bool is_written = mounted_.transactions_.has(tensor);
  mounted_.open_files_.visit([&](const OpenFile& file) {
    is_written = is_written || (file.content->tensor() == tensor && file.content->has_bytes());
  });
  return is_written;
}

Result<Outdated> StructureEdits::edit(const StructureChange& change) {
  RETURN_IF_ERROR(change.is_patch ? mounted_.check_writable() : mounted_.check_editable());
  const Counted waits(waiting_edits_);
  const MutexLock structure(mutex_);
  Outdated outdated;
  const auto attempt = [&]() REQUIRES(mutex_) -> Result<void> {
    auto edited = edit_once(change);
    RETURN_IF_ERROR(edited);
    outdated = std::move(*edited);
    return {};
  };
  auto done = following(attempt, [this]() REQUIRES(mutex_) { return follow_with_mutex(); });
  if (done) return outdated;
  if (done.error().code == ErrorCode::ArchiveChanged) {
    for (const std::uint32_t shard : shards_to_edit()) note_half_done(shard);
  }
  return pass_on(std::move(done));
}

Committers::Shards StructureEdits::shards_to_edit() const {
  Committers::Shards shards;
  for (std::uint32_t shard = 0; shard < mounted_.model().shards().size(); ++shard) {
    if (mounted_.model().shards()[shard].archive && !mounted_.model().is_of_base(shard)) shards.insert(shard);
  }
  return shards;
}

Result<Outdated> StructureEdits::edit_once(const StructureChange& change) {
  const Snapshot::Pin pin = mounted_.snapshots_.pin();
  Outdated outdated;
  ShardWriter writer(mounted_, shards_to_edit());
  if (change.check) writer.set_check(change.check);
  while (writer.take_turns())
    writer.end_attempt(
        guard_memory([&]() REQUIRES(mutex_) { return try_with_room(change, writer, outdated); }));
  for (const auto& [shard, others] : writer.foreign()) outdated.stale.push_back(others);
  if (!writer.result()) {
    for (const Stale& one : outdated.stale) mounted_.tell_stale_(one);
    return tl::unexpected(std::move(writer.result()).error());
  }
  mounted_.note_commit();
  return outdated;
}

Result<void> StructureEdits::try_with_room(const StructureChange& change, ShardWriter& writer,
                                           Outdated& outdated) {
  for (const std::uint32_t shard : shards_to_edit()) mounted_.committers_.of(shard).retire_journal();
  bool needs_room = false;
  auto tried = try_edit(change, writer.options_of(), outdated, needs_room);
  if (!needs_room) return tried;
  if (drop_unread()) tried = try_edit(change, writer.options_of(), outdated, needs_room);
  if (!needs_room) return tried;
  // The bytes of a deleted tensor may be where the header has to grow, and must stay.
  if (auto made = make_room(change, writer.options_of()); !made) {
    if (made.error().code != ErrorCode::Busy) return made;
    // Waiting helps if a tool that reads the archive is about to end, but not if a mount has the archive
    // open. The kernel forgets a deleted tensor some time after the last program has closed it.
    constexpr std::chrono::seconds kPatience{1};
    if (writer.has_waited() > kPatience && (mounted_.model().removed().empty() || is_read_elsewhere()))
      tried.error().code = ErrorCode::InvalidArgument;
    return tried;
  }
  return try_edit(change, writer.options_of(), outdated, needs_room);
}

Result<void> StructureEdits::try_edit(const StructureChange& change,
                                      const TransactionGroup::OptionsOf& options_of, Outdated& outdated,
                                      bool& needs_room) {
  needs_room = false;
  auto edit = ModelEdit::of(mounted_.model());
  RETURN_IF_ERROR(edit);
  edit->keep_deleted();
  RETURN_IF_ERROR(change.apply(*edit));
  if (edit->is_empty()) return {};
  if (auto begun = edit->begin(mounted_.options_.commit.uses_locks); !begun) {
    needs_room = begun.error().code == ErrorCode::Busy;
    return begun;
  }
  RETURN_IF_ERROR(change.fill(*edit));
  Outdated found;
  const InodeTable& before = mounted_.tree_.table();
  std::set<Ino> directories = {kRootIno};
  const auto forget_file = [&](Ino ino) {
    if (!before.exists(ino)) return;
    directories.insert(before.parent(ino));
    found.entries.emplace_back(mounted_.space_.in_mount(before.parent(ino)), before.file_name(ino));
  };
  for (const TensorId tensor : change.touched) {
    for (auto& [directory, name] : mounted_.views_.drop_names(tensor))
      found.entries.emplace_back(mounted_.space_.in_mount(directory), std::move(name));
    forget_file(InodeTable::ino_of_tensor(tensor));
  }
  // Otherwise the kernel would keep the files of the old version, and with them the bytes of deleted tensors.
  for (const FixedEntry& entry : Views::kEntries) {
    if (Views::whole(entry.ino)) found.entries.emplace_back(mounted_.space_.in_mount(kHiddenIno), entry.name);
  }
  std::set<TensorId> removed_before;
  for (const auto& [tensor, removed] : mounted_.model().removed()) removed_before.insert(tensor);
  RETURN_IF_ERROR(commit_edit(*edit, change, options_of));
  const auto told = guard_memory([&]() -> Result<void> {
    // Another edit may have added a tensor under the name of a new one after the change was made. The
    // kernel also forgets that tensor's file.
    for (const auto& [tensor, removed] : mounted_.model().removed()) {
      const bool is_known = removed_before.contains(tensor) ||
                            std::ranges::find(change.touched, tensor) != change.touched.end();
      if (!is_known) forget_file(InodeTable::ino_of_tensor(tensor));
    }
    const InodeTable& after = mounted_.tree_.table();
    for (const TensorId tensor : change.touched) {
      const Ino ino = InodeTable::ino_of_tensor(tensor);
      found.stale.push_back(mounted_.stale(ino, Stale::What::Attributes));
      for (const Stale& view : mounted_.views_.stale(tensor, tensor))
        found.stale.push_back(mounted_.stale(view.first, view.last, view.what));
      if (after.exists(ino)) directories.insert(after.parent(ino));
    }
    for (const Ino directory : directories) {
      if (before.exists(directory)) found.stale.push_back(mounted_.stale(directory, Stale::What::Content));
    }
    found.stale.push_back(mounted_.stale(Views::kNpy, Stale::What::Content));
    found.stale.push_back(mounted_.stale(Views::kFloat32, Stale::What::Content));
    return {};
  });
  if (told) {
    outdated = std::move(found);
  } else {
    give_up_showing(*edit, told.error());
  }
  return {};
}

Result<void> StructureEdits::make_room(const StructureChange& change,
                                       const TransactionGroup::OptionsOf& options_of) {
  // make_room() moves the first tensors of the shards that change. The edit changes nothing else.
  auto edit = ModelEdit::of(mounted_.model());
  RETURN_IF_ERROR(edit);
  edit->keep_deleted();
  for (const TensorId tensor : change.touched) edit->make_room(mounted_.model().place(tensor).shard);
  for (const auto& [name, tensor] : change.ids) {
    if (mounted_.model().ids().position(tensor)) edit->make_room(mounted_.model().place(tensor).shard);
  }
  if (edit->is_empty()) return fail(ErrorCode::Busy, EBUSY, "nothing can move");
  RETURN_IF_ERROR(edit->begin(mounted_.options_.commit.uses_locks));
  return commit_edit(*edit, {.touched = {}, .apply = {}}, options_of);
}

Result<void> StructureEdits::commit_edit(ModelEdit& edit, const StructureChange& change,
                                         const TransactionGroup::OptionsOf& options_of) {
  std::vector<TensorPlace> moved = edit.moved();
  std::ranges::sort(moved);
  for (std::uint32_t at = 0; at < mounted_.model().ids().size() && !moved.empty(); ++at) {
    const TensorId tensor = mounted_.model().ids().of(at);
    if (!std::ranges::binary_search(moved, mounted_.model().place(at)) || !has_staged_place(tensor)) continue;
    return fail(ErrorCode::Busy, EBUSY,
                fmt::format("tensor {} has to move, and a program is writing it",
                            in_quotes(mounted_.model().tensor(tensor).name)));
  }
  for (const ModelEdit::Changed& changed : edit.changed()) ++edited_shards_[changed.shard];
  RETURN_IF_ERROR(mounted_.views_.prepare_next());
  if (auto committed = edit.commit(options_of, mounted_.lock_of()); !committed) {
    // For other errors, another process is in an edit, or has made an edit that can be followed.
    const ErrorCode why = committed.error().code;
    const bool is_own = why != ErrorCode::ArchiveChanged && why != ErrorCode::Busy;
    for (const ModelEdit::Changed& changed : edit.changed()) {
      if (is_own) note_half_done(changed.shard);
    }
    return committed;
  }
  // The edit is done from here on. Later failures do not undo it.
  const bool is_adopted = std::ranges::all_of(edit.changed(), [&](const ModelEdit::Changed& changed) {
    return mounted_.model().archive(changed.shard).version() !=
           mounted_.model().shards()[changed.shard].version;
  });
  if (mounted_.model().is_index_changed()) has_new_index_ = true;
  const auto make_next = [&] {
    return mounted_.model().next({.id_of_new =
                                      [&](std::string_view name) {
                                        const auto given = change.ids.find(std::string(name));
                                        return given == change.ids.end() ? mounted_.give_id() : given->second;
                                      },
                                  .is_open = [](TensorId) { return true; },
                                  .end_of_ids = [this] { return mounted_.next_id_.load(); }});
  };
  const auto shown = guard_memory([&]() REQUIRES(mutex_) -> Result<void> {
    auto next = make_next();
    RETURN_IF_ERROR(next);
    if (!is_adopted)
      return fail(ErrorCode::ArchiveChanged, EIO, "the store failed the look at the new header");
    if (change.renumber) change.renumber();
    const Model& before = mounted_.model();  // pinned
    const bool keeps_ids = std::ranges::any_of(
        change.ids, [&](const auto& given) { return before.ids().position(given.second).has_value(); });
    show(std::move(*next), true);
    end_moves(edit);
    if (keeps_ids) mounted_.reader_.wait_for_readers();
    for (const auto& [name, tensor] : change.ids) {
      if (before.ids().position(tensor) && !before.is_of_base(before.place(tensor).shard))
        left_shards_.insert(before.place(tensor).shard);
    }
    for (const auto& [shard, layout] : edit.changed()) {
      const std::int64_t mtime_ns = mounted_.model().reader(shard).identity().mtime_ns;
      const auto note = [&, at = shard](TensorId tensor) {
        if (mounted_.model().place(tensor).shard == at)
          mounted_.states_.note_commit(tensor, mtime_ns, std::nullopt);
      };
      std::ranges::for_each(change.touched, note);
      for (const auto& [name, tensor] : change.ids) note(tensor);
    }
    return {};
  });
  if (!shown) give_up_showing(edit, shown.error());
  return {};
}

void StructureEdits::show(std::shared_ptr<const Model> next, bool is_edited) {
  mounted_.grow(next->ids().end());
  auto whole_views = is_edited ? mounted_.views_.next(next) : WholeViews::Versions::node_type();
  auto snapshot = mounted_.tree_.next(std::move(next));
  // Nothing fails from here on.
  mounted_.snapshots_.replace(std::move(snapshot));
  if (is_edited) mounted_.views_.show(std::move(whole_views));
  ++MountedModel::changes_;
}

Result<void> StructureEdits::change_directories(const std::function<Result<void>()>& change) {
  const Counted waits(waiting_edits_);
  const Snapshot::Pin pin = mounted_.snapshots_.pin();
  const MutexLock structure(mutex_);
  RETURN_IF_ERROR(change());
  show(mounted_.snapshots_->model, false);
  return {};
}

void StructureEdits::end_moves(const ModelEdit& edit) {
  std::set<std::uint32_t> shards;
  for (const TensorPlace moved : edit.moved()) shards.insert(moved.shard);
  if (shards.empty()) return;
  // A reader finds a tensor's place while it holds the tensor's lock. After this call, all readers that found
  // the old place have ended.
  mounted_.reader_.wait_for_readers();
  for (const std::uint32_t shard : shards) mounted_.model().archive(shard).end_move();
}

void StructureEdits::reclaim(bool is_end) {
  const Snapshot::Pin pin = mounted_.snapshots_.pin();
  const MutexLock structure(mutex_);
  if (mounted_.model().removed().empty() && left_shards_.empty()) return;
  // A call that began before the edit may be about to use a tensor that no look-up holds.
  if (!is_end && !mounted_.snapshots_.have_earlier_calls_ended()) return mounted_.wake_janitor_();
  std::set<TensorId> gone;
  std::map<std::uint32_t, std::vector<ByteRange>> kept;  // by shard that has something to free
  for (const auto& [tensor, removed] : mounted_.model().removed()) {
    if (is_open(tensor) && !is_end) continue;
    gone.insert(tensor);
    if (!mounted_.model().is_of_base(removed.place.shard)) left_shards_.insert(removed.place.shard);
  }
  for (const std::uint32_t shard : left_shards_) kept[shard];
  for (const auto& [tensor, removed] : mounted_.model().removed()) {
    const auto shard = kept.find(removed.place.shard);
    if (shard != kept.end() && !gone.contains(tensor)) shard->second.push_back(removed.file_range);
  }
  for (const auto& [shard, ranges] : kept) {
    ShardWriter writer(mounted_, {shard});
    Result<void> done;
    // Tries each shard only once, because another program may have the archive open for days.
    while (writer.take_turns()) {
      done = guard_memory([&, at = shard, &ranges = ranges]() -> Result<void> {
        mounted_.committers_.of(at).retire_journal();
        auto options = writer.options(at);
        return options ? give_back_fillers(mounted_.model().archive(at), ranges, *options)
                       : tl::unexpected(options.error());
      });
      writer.end_attempt({});
    }
    for (const auto& [changed, others] : writer.foreign()) mounted_.tell_stale_(others);
    // If the attempt failed, the next call retries. The space is not free yet, but edits may use it.
    if (done) left_shards_.erase(shard);
  }
  // If memory runs out, the next tidy() retries.
  if (!gone.empty()) static_cast<void>(show_without(gone));
}

bool StructureEdits::is_index_changed() {
  const MutexLock structure(mutex_);
  return mounted_.model().is_index_changed();
}

}  // namespace stfs
