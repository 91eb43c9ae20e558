// Edits of a model's structure: deleting, renaming, making and retyping tensors, and changing metadata. Each
// edit results in a new model.
//
// An edit holds the turns of all shards. Its commit gives each archive its next version, and Model::next()
// makes the next model of these versions. Tensors keep their ids, so their inode numbers stay the same.
// Deleted tensors stay in Model::removed() with their bytes until no program has them open.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/base/name_hash.h"
#include "core/commit/compaction.h"
#include "core/journal/file_lock.h"
#include "core/model/model_edit.h"
#include "fs/model/shard_writer.h"
#include "fs/tree/bytes.h"

namespace stfs {

class MountedModel;

struct StructureChange {
  /// The tensors that are deleted, or whose name or form changes.
  std::vector<TensorId> touched;
  std::function<Result<void>(ModelEdit&)> apply;
  /// Writes the bytes of new tensors.
  std::function<Result<void>(ModelEdit&)> fill = [](ModelEdit&) { return Result<void>(); };
  /// Changes the numbers of directories, before the new names are shown.
  std::function<void()> renumber{};
  /// Runs if another process has changed an archive. An error ends the edit.
  std::function<Result<void>()> check{};
  /// The ids that new tensors got before the edit, by name. A tensor that gets new bytes in another place
  /// keeps its id, and its file is not `touched`.
  NameMap<std::string, TensorId> ids{};
  /// True if only bytes of tensors change. `-o edit=off` allows such a change.
  bool is_patch = false;
};

/// Any thread may call. One edit runs at a time, and waits for the disk and for other processes' locks.
class StructureEdits {
 public:
  /// Must not outlive the model.
  explicit StructureEdits(MountedModel& mounted) : mounted_(mounted) {}

  /// Commits the change, and shows the new model. If another process has edited the model, follows that edit
  /// and makes the change again. @return the entries that the kernel must forget.
  Result<Outdated> edit(const StructureChange& change);
  /// True if follow() can show edits of other processes. Otherwise the model must be reopened.
  [[nodiscard]] bool follows() const;
  enum class Followed : std::uint8_t {
    Nothing,    // no other process has edited the model
    Shown,      // its edit is shown
    Unsettled,  // another process is in a commit: retry
    Lost,       // the model must be reopened
  };
  /// Shows the result of edits of other processes in the same MountedModel: tensors keep their numbers, and
  /// programs keep their open files. The caller has no turn.
  Followed follow();
  /// Runs an attempt to commit. If the attempt fails because another process has edited the model, follows
  /// that edit and retries, until options.lock_patience ends. The caller has no turn.
  Result<void> following(const std::function<Result<void>()>& attempt) {
    return following(attempt, [this] { return follow(); });
  }
  /// Changes directories of the tree that contain no tensors, and shows the change.
  /// @param change  changes TensorTree::numbers(). If it fails, its error is the result and no change is
  ///                shown.
  Result<void> change_directories(const std::function<Result<void>()>& change);
  /// True if bytes are staged for a tensor, by programs that have it open or in a transaction.
  [[nodiscard]] bool is_being_written(TensorId tensor) const;
  /// Frees the space of deleted tensors that no program has open any more.
  /// @param is_end  true at the end of the mount: no program has a tensor open.
  void reclaim(bool is_end);

  /// Logs the fillers that earlier edits have left. Call once, when the model is opened.
  void log_found_gaps() const;
  /// Moves tensors into the gaps that this mount's edits have left, if the move is cheap, and logs the gaps
  /// that stay. Programs may read tensors during the move. Gives up when another call has to wait for the
  /// move, or when a program still reads or writes bytes in the way; the next call continues.
  /// @param is_end  true at the end of the mount: no call waits and no program reads.
  void close_gaps(bool is_end);

  /// True if another program has replaced the model's index.
  [[nodiscard]] bool is_index_changed();
  /// Returns true if an edit has replaced the index since the last call. Then a watch on the file must be set
  /// again.
  [[nodiscard]] bool take_new_index() { return has_new_index_.exchange(false); }

 private:
  Result<void> following(const std::function<Result<void>()>& attempt,
                         const std::function<Followed()>& follow) const;
  // structure_edits_foreign.cc, which handles the edits of other processes:
  Followed follow_with_mutex() REQUIRES(mutex_);
  /// Adopts the headers that other processes have changed, all or none.
  /// @param locks   gets the locks that prevent the next edit of other processes.
  /// @param edited  gets the shards of these headers.
  Followed adopt_edits(const Committers::Shards& shards, std::vector<ArchiveLocks>& locks,
                       Committers::Shards& edited);
  /// Shows the model of the adopted versions. @return the entries that the kernel must forget.
  Result<Outdated> show_adopted(const Committers::Shards& edited) REQUIRES(mutex_);
  /// One try of edit().
  Result<Outdated> edit_once(const StructureChange& change) REQUIRES(mutex_);
  /// Shows the model without these tensors of Model::removed().
  Result<void> show_without(const std::set<TensorId>& gone) REQUIRES(mutex_);
  /// True if another process has one of the shards open that edits change.
  [[nodiscard]] bool is_read_elsewhere() const;
  /// The shards that edits change.
  [[nodiscard]] Committers::Shards shards_to_edit() const;
  /// Makes one attempt, with the turns of all shards. Makes room in the header if the edit needs room.
  /// @param outdated  gets the entries that the kernel must forget, unless the attempt fails.
  Result<void> try_with_room(const StructureChange& change, ShardWriter& writer, Outdated& outdated)
      REQUIRES(mutex_);
  /// Acts as try_with_room(), without making room.
  /// @param needs_room  set if the header has no room.
  Result<void> try_edit(const StructureChange& change, const TransactionGroup::OptionsOf& options_of,
                        Outdated& outdated, bool& needs_room) REQUIRES(mutex_);
  /// Moves tensors away from the end of the header, for an edit that deletes tensors there.
  Result<void> make_room(const StructureChange& change, const TransactionGroup::OptionsOf& options_of)
      REQUIRES(mutex_);
  /// Commits an edit that has begun, and shows the new model.
  Result<void> commit_edit(ModelEdit& edit, const StructureChange& change,
                           const TransactionGroup::OptionsOf& options_of) REQUIRES(mutex_);
  /// Shows a model with its names and views. If memory runs out, shows no part of it.
  /// @param is_edited  false if the model has the same tensors as the present one, or is the present model
  ///                   with other directories.
  void show(std::shared_ptr<const Model> next, bool is_edited) REQUIRES(mutex_);
  /// Call when an edit is in the archive but can't be shown. The watcher then reopens the model.
  void give_up_showing(const ModelEdit& edit, const Error& why) const;
  /// Call when a commit to the shard has failed. If the commit was past its commit point, it may have
  /// overwritten places that the present version names. Until the model is reopened, a tensor of the shard
  /// can be read only if it has the same place in the present header.
  void note_half_done(std::uint32_t shard) const;
  /// Ends the view of the old places of tensors that an edit has moved.
  void end_moves(const ModelEdit& edit);
  // structure_edits_gaps.cc, which closes gaps:
  /// @param steps  gets the number of steps that were carried out.
  Result<void> close_gaps_of(std::uint32_t shard, const Archive& archive, bool is_end, std::uint64_t& steps);
  /// The plan of one call of close_gaps_of().
  struct GapPlan {
    std::vector<ByteRange> left;                  // the gaps that stay
    std::shared_ptr<const ArchiveHeader> header;  // of the archive after the last step
    PlanningEffort::Check check;
  };
  /// Carries out the next step that closes a gap of a shard.
  /// @return false: no step is left. Busy (EBUSY): the step can't be done now.
  Result<bool> close_gap(std::uint32_t shard, bool is_end, GapPlan& plan, Outdated& outdated);
  /// Busy (EBUSY): a call waits that changes the shard.
  [[nodiscard]] Result<void> check_waiting(std::uint32_t shard) const;
  /// True if a program may read a tensor of Model::removed(), or a file that shows it.
  [[nodiscard]] bool is_open(TensorId removed) const;
  /// Lets edits use the bytes of those tensors of Model::removed() that no program has open, and removes
  /// these tensors from the model. @return true if it removed any tensor.
  bool drop_unread() REQUIRES(mutex_);
  /// True if bytes are staged for the tensor's present place.
  [[nodiscard]] bool has_staged_place(TensorId tensor) const;

  MountedModel& mounted_;
  std::atomic<bool> has_new_index_ = false;
  std::atomic<unsigned> waiting_edits_ = 0;  // waiting and running edits, without close_gap()
  Mutex mutex_;                              // one edit at a time; taken before all turns
  // Shards with places that tensors have left and that no program reads.
  std::set<std::uint32_t> left_shards_ GUARDED_BY(mutex_);
  // The number of edits of a shard since its gaps were closed.
  std::map<std::uint32_t, std::uint64_t> edited_shards_ GUARDED_BY(mutex_);
};

}  // namespace stfs
