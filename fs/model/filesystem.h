// The file system of one model: all rules of the tree, of reading, writing and committing. It uses no FUSE
// type, so tests drive it without a kernel.
//
// Inode numbers in calls and results are those of the mount (fs/tree/inode_space.h). resolve() alone decodes
// them.
//
// Any thread may call anything. Locks are taken in this order:
//   structure mutex          one edit of the structure at a time
//   PendingContent::mutex    guards one writer's pending bytes; readers may enter during its commit
//   Committer::turn          one attempt to commit, or one check for foreign changes, of a shard at a time
//   TransactionGroup::mutex  guards the stages of a transaction
//   TensorReader::lock_of()  shared while a reply refers to the map; exclusive for two moments of a commit
//   Archive's locks          guard overlays and identity
//   the last ones            the mutexes of OpenFiles, TensorStates, ShardPermissions, TransactionDirectory,
//                            Views and PretrainedDirectory, each held only for moments
// A thread that waits for another process's lock has no turn (Committers::in_turn()). No lock is
// held when a call returns, except the tensor's shared lock inside a Bytes.
//
// Waiting: lookup() and read_directory() wait for a disk in `.safetensors/pretrained`. attributes() takes
// only mutexes of the last rank. No thread holds them while it writes, syncs or locks a file. read() takes
// the content's mutex for reading, then the tensor's lock: both wait only for copies in memory. Commits wait
// for the disk and for other processes' locks.
#pragma once

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/reader_writer_lock.h"
#include "core/commit/transaction.h"
#include "core/model/model.h"
#include "core/model/model_edit.h"
#include "core/storage/permissions.h"
#include "fs/base/versioned.h"
#include "fs/model/hidden_directory.h"
#include "fs/read/pretrained_directory.h"
#include "fs/read/shard_permissions.h"
#include "fs/read/tensor_reader.h"
#include "fs/read/tensor_states.h"
#include "fs/read/views.h"
#include "fs/tree/bytes.h"
#include "fs/tree/inode_space.h"
#include "fs/tree/inode_table.h"
#include "fs/tree/per_tensor.h"
#include "fs/tree/tensor_tree.h"
#include "fs/write/checkpoint.h"
#include "fs/write/close_decision.h"
#include "fs/write/committers.h"
#include "fs/write/drafts.h"
#include "fs/write/open_files.h"
#include "fs/write/transaction_directory.h"

namespace stfs {

struct FilesystemOptions {
  Layout layout = Layout::Flat;
  bool is_read_only = false;
  bool allows_edits = true;  // tensors may be made, deleted, renamed and retyped
  /// -o on_change=fail: what another program writes to the model ends all reads of files that were looked up
  /// before, with ESTALE (TensorReader), and makes the model outdated. Needs is_read_only and a settled
  /// model.
  bool fails_on_change = false;
  std::optional<uid_t> uid;  // default: the archive's; so is gid
  std::optional<gid_t> gid;
  mode_t umask = 0;
  bool is_shared = false;  // other users may enter the mount
  CommitOptions commit;
  /// The counts of the model so far. Null: the file system begins new ones.
  std::shared_ptr<Activity> activity;
  std::uint64_t least_generation = 0;  // no tensor begins with a lower generation
};

class Filesystem {
 public:
  using Stat = struct stat;  // `stat` alone is the function

  Filesystem(std::unique_ptr<Model> model, const FilesystemOptions& options);
  /// A file system of a single archive.
  Filesystem(std::unique_ptr<Archive> archive, const FilesystemOptions& options);

  /// Gives the file system its inode numbers in the mount. Set before the first call; without it the file
  /// system is alone.
  void number_in(InodeSpace space) { space_ = space; }

  // The tree. ENOENT if a name or a number does not exist; EIO for a tensor that the model's index names but
  // none of its shards can serve.
  /// For a file that Views::is_counted() accepts, the caller must call forget() in the end. For others, after
  /// note_lookup().
  [[nodiscard]] Result<struct stat> lookup(Ino parent, std::string_view name) const;
  void forget(Ino ino, std::uint64_t lookups);
  /// Call for each look-up of a file that the kernel gets.
  void note_lookup(Ino ino) const;
  /// Call when the kernel has a reply of lookup() or attributes(), which it may cache.
  void note_told(Ino ino) const;
  /// A counter that grows with each change that makes cached attributes of any file stale.
  static std::uint64_t changes() { return changes_; }
  /// Calls visit for those inodes of a range that the kernel may have cached, with the part of them that it
  /// may have. These inodes count as forgotten from then on.
  using VisitCached = std::function<void(Ino ino, Stale::What what)>;
  void visit_cached(const Stale& stale, const VisitCached& visit) const;
  /// Views::slice_to_forget().
  std::optional<std::string> slice_to_forget() { return views_.slice_to_forget(); }
  [[nodiscard]] Result<struct stat> attributes(Ino ino) const;
  /// Calls visit for `.`, `..` and the children until visit returns false. Begins at `position`: 0 the first
  /// time, then the position at which an earlier call ended. visit gets the position of the next entry.
  using VisitEntry = Directory::VisitEntry;
  Result<void> read_directory(Ino directory, std::uint64_t position, const VisitEntry& visit) const;
  /// S_IFDIR, S_IFLNK or S_IFREG.
  [[nodiscard]] mode_t file_type(Ino ino) const;
  [[nodiscard]] struct statvfs statistics() const;

  // Transactions over many tensors (transaction_directory.h), and directories of layout=tree. EPERM in all
  // other directories.
  /// @param maker  if other users may enter the mount, only the maker may commit, remove or see the
  ///               transaction's staged content.
  Result<struct stat> make_directory(Ino parent, std::string_view name, Maker maker = {});
  Result<void> remove_directory(Ino parent, std::string_view name);
  /// Also deletes a tensor. Programs that have it open go on reading it.
  Result<Outdated> remove_file(Ino parent, std::string_view name);
  /// A move to `committed` is the commit: all of the transaction's tensors change, or none. In the tree, a
  /// tensor gets another name, and replaces one that has it, unless flags (of renameat2(2)) forbid that.
  Result<Outdated> rename(Ino parent, std::string_view name, Ino new_parent, std::string_view new_name,
                          unsigned flags = 0);
  /// setxattr(2) and removexattr(2): dtype and shape of a tensor, `metadata.KEY` of the root. EPERM for
  /// others.
  /// @param value  nothing: removes it.
  /// @param flags  of setxattr(2).
  Result<Outdated> set_extended_attribute(Ino ino, std::string_view name,
                                          const std::optional<std::string>& value, int flags = 0);

  /// Makes a file beside the tensors, or in npy/, and opens it: at its close it becomes a tensor. Opens it if
  /// it exists.
  struct Created {
    struct stat status {};
    OpenFile* file = nullptr;
  };
  Result<Created> create(Ino parent, std::string_view name, int flags, pid_t opener);
  /// Whether the kernel may keep name and attributes of a file: not of one that is no tensor yet.
  [[nodiscard]] bool is_draft(Ino ino) const { return resolve(ino).kind == Node::Kind::Draft; }
  /// The target of a symbolic link. EINVAL for any other file.
  [[nodiscard]] Result<std::string> read_link(Ino ino) const;

  // Extended attributes. ENODATA if there is none of that name.
  [[nodiscard]] Result<std::string> extended_attribute(Ino ino, std::string_view name) const;
  [[nodiscard]] Result<std::vector<std::string>> list_extended_attributes(Ino ino) const;

  // Files. The flags are those of open(2). O_TRUNC is ignored, since the kernel sends a separate resize.
  /// Returns null for a read-only descriptor, which has no state. The file system owns the OpenFile until
  /// release().
  Result<OpenFile*> open(Ino ino, int flags, pid_t opener);
  /// Returns fewer bytes than asked for only at the end of the file.
  Result<Bytes> read(Ino ino, std::uint64_t offset, std::size_t size_bytes) const;
  /// Returns the descriptor of another file that holds the same bytes at the same offsets, and always will.
  /// Only `archive.safetensors` has one, and only if all of these hold: the model is a single archive, its
  /// data begin at a page, and this mount cannot write to it.
  [[nodiscard]] std::optional<int> same_file(Ino ino) const;
  /// Stages the bytes. A synchronous descriptor also commits, as soon as the content is whole. EFBIG past the
  /// end.
  /// @param accept  called before the bytes are staged, if only a failing disk can still refuse them. The
  ///                writer may go on meanwhile, and gets a later failure from its next call, at the latest
  ///                from its close. After accept, `file` may be gone when this returns.
  Result<Stale> write(OpenFile& file, std::span<const std::byte> from, std::uint64_t offset, Caller caller,
                      const std::function<void()>& accept = {});
  /// Stages bytes that the kernel writes back from a shared mapping. The kernel uses any open descriptor for
  /// them.
  Result<void> write_back(Ino ino, std::span<const std::byte> from, std::uint64_t offset);
  /// Whether size and times of the file may be set: EROFS on a read-only mount, EPERM for a view.
  [[nodiscard]] Result<void> check_settable(Ino ino) const;
  Result<void> resize(OpenFile& file, std::uint64_t size_bytes, Caller caller);
  /// Handles a resize that names no descriptor. A resize to 0 by a thread that has just opened the tensor is
  /// the O_TRUNC of that open. Every other one is truncate(2) by name: a tensor's size is fixed, so only that
  /// size is accepted.
  Result<void> resize_by_name(Ino ino, std::uint64_t size_bytes, pid_t caller);
  /// utimensat(2). The time is kept in memory only. A commit of bytes written before keeps this time. In a
  /// transaction the time shows after the commit.
  void set_mtime(Ino ino, struct timespec mtime);
  /// Handles a close of one copy of a descriptor, as close_decision.h says.
  Result<Stale> flush(OpenFile& file, Owner owner, pid_t closer);
  Result<Stale> sync(OpenFile& file);
  /// Call when the descriptor's last copy and its mappings are gone. Acts as close_decision.h says. Errors go
  /// to the log.
  Stale release(OpenFile* file);

  /// The result of a check for changes by others.
  struct Change {
    Stale stale;
    /// Another archive lies at the path, or the header has changed: the model must be reopened.
    bool is_outdated = false;
    /// The file's mode or owner has changed. The directories show other permissions, too.
    bool has_new_permissions = false;
    /// The store failed the check, so the result is unknown.
    bool is_unknown = false;
  };
  /// Checks whether another program has changed a shard. If so, every tensor in it may have changed.
  Change check_for_change(std::uint32_t shard = 0);
  /// Makes every later look-up of files that show tensors fail with EIO and this message. Programs keep what
  /// they have open, except tensors of a delta's base whose bytes somebody has changed: they give EIO.
  void refuse(std::string why);
  [[nodiscard]] bool is_refused() const { return is_refused_; }
  /// Visits the entries that the kernel may have cached, except those of the root. The entries of a directory
  /// come before the directory's own.
  void visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const;
  /// The newest generation of all tensors.
  [[nodiscard]] std::uint64_t newest_generation() const { return states_.newest_generation(); }
  /// Call some time after commits, when no caller waits: settles the journal that is kept for the next
  /// commit, closes discarded files, and frees the space of deleted tensors that nobody has open any more.
  void tidy();
  /// Whether another program has replaced the model's index.
  [[nodiscard]] bool is_index_changed();
  /// Whether an edit has replaced the index since the last call: a watch on the file must begin anew.
  [[nodiscard]] bool take_new_index() { return has_new_index_.exchange(false); }
  /// Drops and logs staged content, and removes the journal that was kept. Call at the end of the mount, when
  /// no other call is running.
  void end();

  /// The views and files of transactions that show stale tensors. The kernel must forget them too.
  [[nodiscard]] std::vector<Stale> stale_views(const Stale& stale);
  /// `forget` runs for caches that became stale outside of a call that could return them, views first. Set
  /// before the first call.
  void tell_stale_to(const std::function<void(Stale)>& forget) {
    forget_ = [this, forget](Stale stale) {
      for (const Stale& view : stale_views(stale)) forget(view);
      forget(stale);
    };
  }

  /// `tell` runs for what an edit has made stale that a close has committed. Set before the first call.
  void tell_outdated_to(std::function<void(const Outdated&)> tell) { tell_outdated_ = std::move(tell); }

  /// `note` runs after each commit, so that its receiver calls tidy(). Set before the first call.
  void tell_commits_to(const std::function<void()>& note) {
    wake_janitor_ = note;
    note_commit_ = [this, note] {
      activity_->note_commit();
      note();
    };
  }
  /// The counts of requests, for `.safetensors/stats.json`.
  [[nodiscard]] const std::shared_ptr<Activity>& activity() const { return activity_; }

  /// What a call reads of the model stays valid while it holds the pin.
  [[nodiscard]] Epochs::Pin pin() const { return epochs_.pin(); }
  [[nodiscard]] bool is_read_only() const { return options_.is_read_only; }
  /// Whether reads fail because another program has written to the model (fails_on_change).
  [[nodiscard]] bool is_changed() const { return reader_.is_any_changed(); }
  [[nodiscard]] const Model& model() const { return *model_; }
  /// The first shard that can be used. For a single archive: that archive.
  [[nodiscard]] const ArchiveReader& archive() const { return model_->front(); }

 private:
  /// What was logged of the last look at a shard, so that it is logged once.
  struct Look {
    std::atomic<bool> is_gone = false;     // no file lies at the path
    std::atomic<bool> is_unknown = false;  // the store failed the look
    std::atomic<bool> is_touched = false;  // somebody else has changed bytes
  };
  /// @param ino  of the mount, or of the model.
  [[nodiscard]] Node resolve(Ino ino) const;
  /// The tensor that a file shows whose look-ups are counted by tensor: its own file, views with a fixed
  /// number, a transaction's file.
  [[nodiscard]] std::optional<TensorId> tensor_behind(Ino ino) const;
  /// The tree that has a number of the model.
  [[nodiscard]] Directory& directory_of(Ino ino) const;
  [[nodiscard]] Result<struct stat> stat_of(const Node& node) const;
  [[nodiscard]] struct stat stat_of_directory(const Node& node) const;
  [[nodiscard]] struct stat stat_of_tensor(const Node& node) const;
  [[nodiscard]] Result<struct stat> stat_of_view(const Node& node) const;
  /// @param node  `pretrained`, or a link in it.
  [[nodiscard]] struct stat stat_of_pretrained(const Node& node) const;
  /// The inodes of the model, from first to last, as numbers of the mount.
  [[nodiscard]] Stale stale(Ino first, Ino last, Stale::What what) const {
    return {space_.in_mount(first), space_.in_mount(last), what};
  }
  [[nodiscard]] Stale stale(Ino ino, Stale::What what) const { return stale(ino, ino, what); }
  /// Call after a change of the shard's mode or owner: tells the caches without waiting for a commit.
  void forget_permissions(std::uint32_t shard) const;
  /// The first and the last id of a shard's tensors; nothing if it has none.
  [[nodiscard]] std::optional<std::pair<TensorId, TensorId>> ids_of_shard(std::uint32_t shard) const;
  /// All tensors of a shard.
  [[nodiscard]] Stale stale_shard(std::uint32_t shard, Stale::What what) const;
  /// The pending content that the page cache of this file shows, if any. Only for tensors.
  [[nodiscard]] std::shared_ptr<PendingContent> shared_content(const Node& node) const;
  [[nodiscard]] Result<Bytes> read_pending(PendingContent& content, std::uint64_t offset,
                                           std::size_t size_bytes) const;
  /// Does the check of check_for_change(). The caller has the shard's turn.
  Change note_foreign_change(std::uint32_t shard);
  /// Notes that another program has changed bytes of the shard. The caller has the shard's turn and has
  /// adopted the archive's new identity. @return all tensors of the shard, as stale.
  Stale note_touched(std::uint32_t shard);
  /// Writes in parallel with writes to other places, if only a failing disk can refuse the bytes. Accepts the
  /// bytes first, and lets other writes in while it stages them.
  /// @return nothing if the write cannot run in parallel; then nothing was done.
  std::optional<Result<void>> write_beside(PendingContent& content, std::span<const std::byte> from,
                                           std::uint64_t offset, Caller caller,
                                           const std::function<void()>& accept);
  // The caller holds the content's mutex:
  /// Notes that bytes were refused. @return the error for their writer.
  tl::unexpected<Error> refuse(PendingContent& content, Error why);
  Result<void> stage(PendingContent& content, std::span<const std::byte> from, std::uint64_t offset);
  Result<Stale> commit(const OpenFile& file);
  /// The same for a tensor of the base of a delta: the delta gets it.
  Result<Stale> commit_copy(const OpenFile& file);
  /// Stages all bytes of a content for another place.
  Result<void> copy_content(PendingContent& content, Staging& to) const;
  /// Changes that others have made to shards, found by a commit.
  using Foreign = std::map<std::uint32_t, Stale>;
  /// Committers::in_turn(). Changes by others go to `foreign`. ESTALE if no offset in a shard can be trusted
  /// any more.
  Result<void> commit_in_turn(const Committers::Shards& shards, Foreign& foreign,
                              const std::function<Result<void>(const TransactionGroup::OptionsOf&)>& attempt);
  /// Notes that a tensor has just been committed.
  void note_commit(const PendingContent& content);
  [[nodiscard]] CloseFacts facts_of_close(const OpenFile& file, Owner owner, pid_t closer) const;
  void abandon_pending();
  Result<Stale> commit_if_dirty(const OpenFile& file);
  [[nodiscard]] Error wrong_size(const PendingContent& content) const;
  /// The error for content whose writer was killed, or may have been.
  [[nodiscard]] Error killed(const PendingContent& content, pid_t closer, Ending ending) const;

  [[nodiscard]] Result<std::string> tensor_attribute(TensorId tensor, std::string_view key) const;
  [[nodiscard]] Result<std::string> root_attribute(std::string_view key) const;
  [[nodiscard]] Result<std::string> delta_attribute() const;
  /// EACCES if some users may read one shard but not all.
  [[nodiscard]] Result<void> check_metadata_readable() const;
  /// @param ino  of the model.
  [[nodiscard]] Result<std::string> view_attribute(Ino ino, std::string_view key) const;
  /// The path of a tensor's file from the mount's root. ENODATA if it was deleted.
  [[nodiscard]] Result<std::string> own_file(TensorId tensor) const;

  // Whole checkpoints (filesystem_checkpoint.cc).
  Result<OpenFile*> open_archive_view(const Node& node, int flags, pid_t opener);
  /// Makes a file in `.safetensors` or pretrained/ that a rename to the whole model commits.
  Result<Created> create_checkpoint(Ino directory, std::string_view name, int flags, pid_t opener);
  Result<Outdated> rename_checkpoint(Ino directory, std::string_view name, Ino new_directory,
                                     std::string_view new_name);
  /// The caller holds the content's mutex. @return what the kernel must forget before the caller goes on.
  Result<std::vector<Stale>> commit_checkpoint(PendingContent& content);
  /// ESTALE if a tensor has changed since its bytes were compared.
  [[nodiscard]] Result<void> check_unchanged(const Checkpoint& saved) const;
  /// Changes bytes of tensors only.
  Result<void> patch_to_checkpoint(const Checkpoint& saved, const std::vector<std::uint32_t>& changed,
                                   std::vector<Stale>& found);
  /// Also changes which tensors there are, or metadata.
  Result<void> edit_to_checkpoint(const Checkpoint& saved, const std::vector<std::uint32_t>& changed,
                                  std::vector<Stale>& found);

  // New tensors (filesystem_new.cc).
  [[nodiscard]] Archive& archive_for_new() const;
  [[nodiscard]] std::string label_of(const PendingContent& content) const;
  OpenFile* add_open(Ino ino, int flags, pid_t opener, FileKind kind,
                     std::shared_ptr<PendingContent> content);
  /// The file name of the tensor of a new file in npy/. EINVAL without `.npy`.
  static Result<std::string_view> npy_stem(std::string_view name);
  /// Makes a file that is no tensor before its close, and opens it. EBUSY if there is one of that name.
  Result<Created> make_draft(Drafts::Draft draft, int flags, pid_t opener);
  /// Opens the NumPy file of a tensor for writing: the first open makes the draft.
  Result<OpenFile*> open_draft(Drafts::Draft draft, TensorId tensor, std::string name, int flags,
                               pid_t opener);
  /// Opens a view in npy/ for writing.
  Result<OpenFile*> open_npy(const Node& node, int flags, pid_t opener);
  /// Loads what a view shows before the first write to it, unless it was truncated.
  Result<void> load_base(PendingContent& content, Ino ino);
  /// Commits the content of a new tensor. The caller holds the content's mutex.
  Result<Stale> commit_new(const OpenFile& file);
  /// Makes a tensor of a content that was made, or replaces the one of that name. The caller holds the
  /// content's mutex. @param id  the tensor's.
  Result<Outdated> put_made(PendingContent& content, const std::string& name, const NewTensor::Form& form,
                            TensorId id);
  /// Makes a tensor of a file that waits for its name. ENODATA: a tensor of that name has another size.
  Result<Outdated> name_draft(const Drafts::Draft& draft, const std::string& name);
  /// The same, where a tensor of that name, dtype and shape exists.
  /// @param fill  writes all bytes of the tensor.
  Result<Stale> commit_in_place(TensorId tensor, const std::function<Result<void>(Staging&)>& fill);
  [[nodiscard]] struct stat stat_of_draft(const Node& node, const PendingContent& content) const;
  [[nodiscard]] Result<std::string> draft_attribute(const PendingContent& content,
                                                    std::string_view key) const;
  static Result<void> set_form(const PendingContent& content, std::string_view key, const std::string& value);
  /// Call when the descriptor of a new tensor goes.
  void end_draft(const OpenFile& file);
  /// Gives a form to what a program is about to write to a tensor: it then has another size, dtype or shape.
  /// @return nothing if no program has the tensor open for writing, or has written bytes already.
  std::optional<Result<void>> set_pending_form(TensorId tensor, std::string_view key,
                                               const std::string& value);
  /// The same for one content. @return false if bytes were written or it was closed.
  Result<bool> form_open_content(PendingContent& content, const std::string& name, Dtype dtype,
                                 std::string_view key, const std::string& value) const;
  /// @return false if it has become a tensor.
  bool remove_draft(const Drafts::Draft& draft);

  // Edits of the structure in a transaction (filesystem_staged.cc).
  /// Why its maker can't stage edits of the structure, if so: check_editable(), or EACCES if he may not write
  /// every shard.
  [[nodiscard]] Result<void> check_staging(Ino transaction) const;
  /// The name of the tensor that a new file in a transaction becomes. EILSEQ if no tensor can have it.
  static Result<std::string> name_for_staging(std::string_view file_name);
  Result<OpenFile*> open_staged(const Node& node, int flags, pid_t opener);
  Result<Created> create_staged(Ino transaction, std::string_view name, int flags, pid_t opener);
  // T/.safetensors/npy: as in `.safetensors/npy`, but a close stages the tensor in the transaction.
  Result<Created> create_staged_npy(Ino directory, std::string_view name, int flags, pid_t opener);
  Result<OpenFile*> open_staged_npy(const Node& node, int flags, pid_t opener);
  /// Stages what a program has written. The caller holds the content's mutex.
  Result<Stale> stage_npy(const OpenFile& file);
  /// Notes in the transaction that a file did not become a tensor, so that its commit fails.
  void stage_npy_failure(const OpenFile& file);
  /// What a file shows before the bytes of its tensor. Nothing while these have no form: the file is empty.
  struct StagedNpy {
    Ino plain = 0;                    // the file with the tensor's bytes
    struct stat status {};            // of that file
    std::optional<std::string> head;  // the NumPy header
  };
  [[nodiscard]] Result<StagedNpy> staged_npy(const Node& node) const;
  [[nodiscard]] Result<struct stat> stat_of_staged_npy(const Node& node) const;
  [[nodiscard]] Result<Bytes> read_staged_npy(const Node& node, std::uint64_t offset,
                                              std::size_t size_bytes) const;
  Result<Outdated> rename_staged(Ino transaction, std::string_view name, std::string_view new_name,
                                 unsigned flags);
  Result<Outdated> set_staged_attribute(const Node& node, std::string_view key,
                                        const std::optional<std::string>& value, int flags);
  Result<void> set_staged_form(const Node& node, std::string_view key, const std::string& value);
  [[nodiscard]] Result<std::string> staged_attribute(const Node& node, std::string_view key) const;
  /// A JSON list.
  [[nodiscard]] std::string deleted_names(Ino transaction) const;
  /// @param outdated  gets what the kernel must forget, unless it fails.
  Result<void> commit_staged(const TransactionEdit& staged, Outdated& outdated);

  // Edits of the structure (filesystem_edit.cc).
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
    std::unordered_map<std::string, TensorId> ids{};
    /// Only bytes of tensors change: `-o edit=off` allows it.
    bool is_patch = false;
  };
  /// EROFS, EPERM, ESTALE if this mount can't change the structure.
  [[nodiscard]] Result<void> check_editable() const;
  /// EROFS, ESTALE if this mount can't change a tensor.
  [[nodiscard]] Result<void> check_writable() const;
  Result<Outdated> edit(const StructureChange& change);
  /// One attempt, with the turns of all shards.
  /// @param outdated  gets what the kernel must forget, unless it fails.
  Result<void> try_edit(const StructureChange& change, const TransactionGroup::OptionsOf& options_of,
                        Outdated& outdated, bool& needs_room);
  /// Moves tensors out of the header's way, for an edit that deletes tensors there.
  Result<void> make_room(const StructureChange& change, const TransactionGroup::OptionsOf& options_of);
  /// Commits an edit that has begun, and shows the model that follows.
  Result<void> commit_edit(ModelEdit& edit, const StructureChange& change,
                           const TransactionGroup::OptionsOf& options_of);
  /// @param is_edited  false: it has the same tensors as the present one.
  void show(std::unique_ptr<Model> next, bool is_edited);
  /// Ends the view of the old places of what an edit has moved.
  void end_moves(const ModelEdit& edit);
  /// Whether bytes are staged for a tensor, by programs that have it open or in a transaction.
  [[nodiscard]] bool is_being_written(TensorId tensor) const;
  /// The same, for bytes that are staged for the tensor's present place.
  [[nodiscard]] bool has_staged_place(TensorId tensor) const;
  [[nodiscard]] TensorId give_id();
  /// Frees what deleted tensors take, once nobody has them open.
  /// @param is_end  the mount ends: nobody has any more.
  void reclaim(bool is_end);
  /// EILSEQ if no tensor can have the file name.
  [[nodiscard]] Result<std::string> name_in(Ino directory, std::string_view file_name) const;
  Result<Outdated> rename_tensor(Ino parent, std::string_view name, Ino new_parent, std::string_view new_name,
                                 unsigned flags);
  /// @param to  what has the new name now.
  Result<Outdated> rename_directory(Ino directory, const Result<Ino>& to, Ino new_parent,
                                    std::string_view new_name, unsigned flags);
  /// Whether layout=tree can have a directory of that name: EILSEQ, EPERM, EEXIST.
  [[nodiscard]] Result<void> check_new_directory(Ino parent, std::string_view name) const;
  Result<struct stat> make_tree_directory(Ino parent, std::string_view name);
  Result<void> remove_tree_directory(Ino parent, std::string_view name);
  /// Shows directories that were made or removed.
  void show_directories();
  Result<Outdated> set_metadata(std::string_view key, const std::optional<std::string>& value, int flags);
  Result<Outdated> retype(TensorId tensor, std::string_view key, const std::string& value);
  static Result<void> check_metadata(std::string_view key, const std::optional<std::string>& value);
  /// The form that a tensor's bytes get if an attribute is set. A shape may need another size.
  static Result<NewTensor::Form> retyped(std::string_view name, NewTensor::Form now, std::string_view key,
                                         const std::string& value);
  static Result<Dtype> dtype_of_text(const std::string& text);
  static Result<std::vector<std::uint64_t>> shape_of_attribute(const std::string& text);
  Versioned<Model> model_;
  Epochs epochs_;
  FilesystemOptions options_;
  std::function<void(Stale)> forget_ = [](Stale) {};
  std::shared_ptr<Activity> activity_;
  std::function<void(const Outdated&)> tell_outdated_ = [](const Outdated&) {};
  std::function<void()> wake_janitor_ = [] {};
  std::function<void()> note_commit_ = [this] { activity_->note_commit(); };
  InodeSpace space_;
  mutable TensorTree tree_;
  std::vector<Look> looks_;  // by shard
  TensorStates states_;
  ShardPermissions permissions_;
  TensorReader reader_;
  mutable Views views_;
  mutable PretrainedDirectory pretrained_;
  mutable TransactionDirectory transactions_;
  mutable HiddenDirectory hidden_;
  // By id: the kernel's page cache may hold bytes of it. Set before the bytes are read, under no lock.
  // Checked after a commit, which keeps readers out.
  PerTensor<std::atomic<bool>> may_be_cached_;
  // The same for attributes. Set before the attributes are read, and again when the kernel has them.
  PerTensor<std::atomic<bool>> may_be_known_;
  PerTensor<std::atomic<std::uint32_t>> lookups_;  // by id: of its files that the kernel knows
  inline static std::atomic<std::uint64_t> changes_ = 0;
  Committers committers_;
  std::atomic<bool> is_refused_ = false;
  // One edit of the structure at a time; taken before all turns.
  std::mutex structure_mutex_;
  std::set<std::uint32_t> left_shards_;  // tensors have left places in them that nobody reads; guarded by it
  std::atomic<std::uint32_t> next_id_;
  std::atomic<bool> has_new_index_ = false;
  Epochs::Number last_edit_ = 0;  // ends when no call from before the last edit is running

  OpenFiles open_files_;
  mutable Drafts drafts_;
  mutable std::mutex refusal_mutex_;  // guards why_refused_
  std::string why_refused_;
};

}  // namespace stfs
