// Edits of a model's structure: tensors that are deleted, renamed, made and retyped, metadata; and the model
// that follows.
//
// An edit has the turns of all shards. Its commit gives each archive its next version; Model::next() makes
// the next model of them. Tensors keep their ids, and so their inode numbers. Deleted ones stay in
// Model::removed() with their bytes until no program has them open.
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
#include "core/journal/file_lock.h"
#include "core/model/model_edit.h"
#include "fs/model/foreign_changes.h"
#include "fs/model/model_parts.h"
#include "fs/model/shard_writer.h"

namespace stfs {

struct StructureChange {
  /// The tensors whose name or form changes, or that go.
  std::vector<TensorId> touched;
  std::function<Result<void>(ModelEdit&)> apply;
  /// Writes the bytes of new tensors.
  std::function<Result<void>(ModelEdit&)> fill = [](ModelEdit&) { return Result<void>(); };
  /// Changes the numbers of directories, before the new names are shown.
  std::function<void()> renumber{};
  /// Runs if another process has changed an archive: its error ends the edit.
  std::function<Result<void>()> check{};
  /// The ids that were given to new tensors beforehand, by name. A tensor that gets new bytes in another
  /// place keeps its id; its file is then not `touched`.
  NameMap<std::string, TensorId> ids{};
  /// Only bytes of tensors change: `-o edit=off` allows it.
  bool is_patch = false;
};

/// Any thread may call: one edit runs at a time, and waits for the disk and for other processes' locks.
class StructureEdits {
 public:
  /// Must not outlive them.
  StructureEdits(ModelParts& parts, ForeignChanges& foreign) : parts_(parts), foreign_(foreign) {}

  /// Commits the change, and shows what follows. If another process has edited the model, follows that edit,
  /// and makes the change again. @return what the kernel must forget.
  Result<Outdated> edit(const StructureChange& change);
  /// Whether this file system follows edits of other processes. Else the model is opened anew.
  [[nodiscard]] bool follows() const {
    return !parts_.options.is_read_only && parts_.options.commit.uses_locks && !parts_.is_refused &&
           !parts_.reader.is_any_broken();
  }
  enum class Followed : std::uint8_t {
    Nothing,    // no other process has edited the model
    Shown,      // its edit is shown
    Unsettled,  // another process is in a commit: try again
    Lost,       // the model must be opened anew
  };
  /// Shows what edits of other processes have made of the model, in this file system: tensors keep their
  /// numbers, and programs what they have open. The caller has no turn.
  Followed follow();
  /// Runs an attempt to commit. If it fails because another process has edited the model, follows that edit
  /// and runs it again, until options.lock_patience ends. The caller has no turn.
  Result<void> following(const std::function<Result<void>()>& attempt) {
    return following(attempt, [this] { return follow(); });
  }
  /// Changes the tree's directories without tensors, and shows them.
  /// @param change  of TensorTree::numbers(). Its error is the result, and nothing else is shown then.
  Result<void> change_directories(const std::function<Result<void>()>& change);
  /// Whether bytes are staged for a tensor, by programs that have it open or in a transaction.
  [[nodiscard]] bool is_being_written(TensorId tensor) const;
  /// Frees what deleted tensors take, once nobody has them open.
  /// @param is_end  the mount ends: nobody has any more.
  void reclaim(bool is_end);

  /// Logs the fillers that edits of before have left. Call it once, at the beginning.
  void log_found_gaps() const;
  /// Moves tensors into the gaps that this mount's edits have left, where that is cheap, and logs what stays.
  /// Programs may read tensors meanwhile. Gives up when another call has to wait for it, or when bytes are in
  /// the way that a program still reads or writes: the next call goes on.
  /// @param is_end  the mount ends: nobody waits or reads any more.
  void close_gaps(bool is_end);

  /// Whether another program has replaced the model's index.
  [[nodiscard]] bool is_index_changed();
  /// Whether an edit has replaced the index since the last call: a watch on the file must begin anew.
  [[nodiscard]] bool take_new_index() { return has_new_index_.exchange(false); }

 private:
  Result<void> following(const std::function<Result<void>()>& attempt,
                         const std::function<Followed()>& follow) const;
  // structure_edits_foreign.cc has the edits of other processes:
  Followed follow_with_mutex() REQUIRES(mutex_);
  /// Adopts the headers that other processes have changed, all or none.
  /// @param locks   gets those that keep the next edit of other processes away.
  /// @param edited  gets the shards of these headers.
  Followed adopt_edits(const Committers::Shards& shards, std::vector<ArchiveLocks>& locks,
                       Committers::Shards& edited);
  /// Shows the model of the versions that were adopted. @return what the kernel must forget.
  Result<Outdated> show_adopted(const Committers::Shards& edited) REQUIRES(mutex_);
  /// One try of edit().
  Result<Outdated> edit_once(const StructureChange& change) REQUIRES(mutex_);
  /// Shows the model without these tensors of Model::removed().
  Result<void> show_without(const std::set<TensorId>& gone) REQUIRES(mutex_);
  /// Whether another process has a shard open that edits change.
  [[nodiscard]] bool is_read_elsewhere() const;
  /// The shards that edits change.
  [[nodiscard]] Committers::Shards shards_to_edit() const;
  /// One attempt, with the turns of all shards. Makes room in the header where that is needed.
  /// @param outdated  gets what the kernel must forget, unless it fails.
  Result<void> try_with_room(const StructureChange& change, ShardWriter& writer, Outdated& outdated)
      REQUIRES(mutex_);
  /// The same, without making room.
  /// @param needs_room  set if the header has no room.
  Result<void> try_edit(const StructureChange& change, const TransactionGroup::OptionsOf& options_of,
                        Outdated& outdated, bool& needs_room) REQUIRES(mutex_);
  /// Moves tensors out of the header's way, for an edit that deletes tensors there.
  Result<void> make_room(const StructureChange& change, const TransactionGroup::OptionsOf& options_of)
      REQUIRES(mutex_);
  /// Commits an edit that has begun, and shows the model that follows.
  Result<void> commit_edit(ModelEdit& edit, const StructureChange& change,
                           const TransactionGroup::OptionsOf& options_of) REQUIRES(mutex_);
  /// Shows a model and its names and views: all of them or, without memory, none.
  /// @param is_edited  false: it has the same tensors as the present one, or is that one with other
  ///                   directories.
  void show(std::shared_ptr<Model> next, bool is_edited) REQUIRES(mutex_);
  /// Ends the view of the old places of what an edit has moved.
  void end_moves(const ModelEdit& edit);
  // structure_edits_gaps.cc has the gaps:
  /// @param steps  gets how many steps were carried out.
  Result<void> close_gaps_of(std::uint32_t shard, bool is_end, std::uint64_t& steps);
  /// Carries out the next step that closes a gap of a shard.
  /// @return false: there is none. Busy (EBUSY): it can't be done now.
  Result<bool> close_gap(std::uint32_t shard, bool is_end, Outdated& outdated);
  /// Whether a call waits that changes the shard.
  [[nodiscard]] bool is_waited_for(std::uint32_t shard) const;
  /// Whether a program may read a tensor of Model::removed(), or a file that shows it.
  [[nodiscard]] bool is_open(TensorId removed) const;
  /// Lets edits use the bytes of those tensors of Model::removed() that no program has open. These
  /// tensors are then gone. @return whether there were any.
  bool drop_unread() REQUIRES(mutex_);
  /// Whether bytes are staged for the tensor's present place.
  [[nodiscard]] bool has_staged_place(TensorId tensor) const;

  ModelParts& parts_;
  ForeignChanges& foreign_;
  std::atomic<bool> has_new_index_ = false;
  std::atomic<unsigned> waiting_edits_ = 0;  // and those that run, but close_gap()
  Mutex mutex_;                              // one edit at a time; taken before all turns
  // Tensors have left places in them that nobody reads.
  std::set<std::uint32_t> left_shards_ GUARDED_BY(mutex_);
  // How often, since their gaps were closed.
  std::map<std::uint32_t, std::uint64_t> edited_shards_ GUARDED_BY(mutex_);
  Epochs::Number last_edit_ GUARDED_BY(mutex_) = 0;  // ends when no call from before the last edit is running
};

}  // namespace stfs
