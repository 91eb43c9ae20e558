// The file system of one model: all rules of the tree, of reading, writing and committing. It uses no FUSE
// type, so tests drive it without a kernel.
//
// Any thread may call anything. Locks are taken in this order:
//   PendingContent::mutex    guards one writer's pending bytes; readers may enter during its commit
//   commit_mutex_            one attempt to commit, or one check for foreign changes, at a time
//   TransactionGroup::mutex  guards the stages of a transaction
//   tensor_locks_[...]       shared while a reply refers to the map; exclusive for two moments of a commit
//   Archive's locks          guard overlays and identity
//   state_mutex_             guards generations, times and permissions; TransactionDirectory's and Views'
//                            mutexes have the same rank
// A thread that waits for another process's lock does not hold commit_mutex_ (commit_in_turn()). No lock is
// held when a call returns, except the tensor's shared lock inside a Bytes.
//
// Waiting: attributes() takes only state_mutex_ and mutexes of its rank. No thread holds them while it
// writes, syncs or locks a file. read() takes the content's mutex for reading, then the tensor's lock: both
// wait only for copies in memory. Commits wait for the disk and for other processes' locks.
#pragma once

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/reader_writer_lock.h"
#include "core/commit/transaction.h"
#include "core/model/model.h"
#include "core/storage/permissions.h"
#include "fs/read/views.h"
#include "fs/tree/bytes.h"
#include "fs/tree/inode_table.h"
#include "fs/tree/unserved_tensors.h"
#include "fs/write/close_decision.h"
#include "fs/write/open_file.h"
#include "fs/write/transaction_directory.h"

namespace stfs {

struct FilesystemOptions {
  Layout layout = Layout::Flat;
  bool is_read_only = false;
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

  // The tree. ENOENT if a name or a number does not exist; EIO for a tensor that the model's index names but
  // none of its shards can serve.
  /// For a file that Views::is_counted() accepts, the caller must call forget() in the end.
  [[nodiscard]] Result<struct stat> lookup(Ino parent, std::string_view name) const;
  void forget(Ino ino, std::uint64_t lookups) { views_->forget(ino, lookups); }
  /// Call when the kernel has a reply of lookup() or attributes(), which it may cache.
  void note_told(Ino ino) const;
  /// A counter that grows with each change that makes cached attributes of any file stale.
  static std::uint64_t changes() { return changes_; }
  /// Calls visit for those inodes of a range that the kernel may have cached, with the part of them that it
  /// may have. These inodes count as forgotten from then on.
  using VisitCached = std::function<void(Ino ino, Stale::What what)>;
  void visit_cached(const Stale& stale, const VisitCached& visit) const;
  /// Views::slice_to_forget().
  std::optional<std::string> slice_to_forget() { return views_->slice_to_forget(); }
  [[nodiscard]] Result<struct stat> attributes(Ino ino) const;
  /// Calls visit for `.`, `..` and the children until visit returns false. Begins at `position`: 0 the first
  /// time, then the position at which an earlier call ended. visit gets the position of the next entry.
  using VisitEntry = std::function<bool(std::string_view name, Ino ino, std::uint64_t position)>;
  Result<void> read_directory(Ino directory, std::uint64_t position, const VisitEntry& visit) const;
  [[nodiscard]] bool is_directory(Ino ino) const;
  [[nodiscard]] struct statvfs statistics() const;

  // Transactions over many tensors (transaction_directory.h). EPERM in all other directories.
  /// @param maker  if other users may enter the mount, only the maker may commit, remove or see the
  ///               transaction's staged content.
  Result<struct stat> make_directory(Ino parent, std::string_view name, Maker maker = {});
  Result<void> remove_directory(Ino parent, std::string_view name);
  Result<void> remove_file(Ino parent, std::string_view name);
  /// A move to `committed` is the commit: all of the transaction's tensors change, or none.
  Result<std::vector<Stale>> rename(Ino parent, std::string_view name, Ino new_parent,
                                    std::string_view new_name);

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
  /// they have open.
  void refuse(std::string why);
  [[nodiscard]] bool is_refused() const { return is_refused_; }
  /// Visits the entries that the kernel may have cached, except those of the root. The entries of a directory
  /// come before the directory's own.
  void visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const;
  /// The newest generation of all tensors.
  [[nodiscard]] std::uint64_t newest_generation() const;
  /// Call some time after commits, when no caller waits: settles the journal that is kept for the next
  /// commit, and closes discarded files.
  void tidy();
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

  /// `note` runs after each commit, so that its receiver calls tidy(). Set before the first call.
  void tell_commits_to(const std::function<void()>& note) {
    note_commit_ = [this, note] {
      activity_->note_commit();
      note();
    };
  }
  /// The counts of requests, for `.safetensors/stats.json`.
  [[nodiscard]] const std::shared_ptr<Activity>& activity() const { return activity_; }

  /// True for a view. Views are read-only: EROFS.
  [[nodiscard]] static bool is_view(Ino ino) { return Views::owns(ino); }

  [[nodiscard]] bool is_read_only() const { return options_.is_read_only; }
  [[nodiscard]] const Model& model() const { return *model_; }
  /// The first shard that can be used. For a single archive: that archive.
  [[nodiscard]] const Archive& archive() const { return model_->front(); }

 private:
  struct State {
    std::uint64_t generation = 0;
    struct timespec mtime {};
  };
  static constexpr std::size_t kMostTensorLocks = 1024;

  /// The state of a shard.
  struct ShardState {
    std::atomic<bool> is_broken = false;     // the header has changed
    std::atomic<bool> is_gone = false;       // no file lies at the path; logged once
    std::atomic<bool> is_unknown = false;    // the store failed the last check; logged once
    bool is_untidy = false;                  // untidy_ contains it; guarded by commit_mutex_
    State common;                            // of all tensors that no commit has changed; by state_mutex_
    std::optional<Permissions> permissions;  // none without a file; guarded by state_mutex_
  };
  [[nodiscard]] const ShardState& shard_of(std::uint32_t tensor) const {
    return shards_[model_->place(tensor).shard];
  }
  [[nodiscard]] ReaderWriterLock& lock_of(TensorPlace place) const {
    return tensor_locks_[(place.shard + place.tensor) % tensor_locks_.size()];
  }
  [[nodiscard]] bool exists(Ino ino) const;
  /// The position of the tensor that a file shows. Only for inodes that are not directories.
  [[nodiscard]] std::uint32_t tensor_of(Ino ino) const;
  [[nodiscard]] static struct timespec timespec_of(std::int64_t ns);
  [[nodiscard]] struct stat stat_of(Ino ino) const;
  [[nodiscard]] Result<struct stat> lookup_unrefused(Ino parent, std::string_view name) const;
  [[nodiscard]] State state_of(std::uint32_t tensor) const;
  // The modes and owners that the mount shows. A tensor shows its shard's. Views of several shards allow what
  // all shards allow. Directories allow what at least one shard allows.
  [[nodiscard]] Permissions permissions_of_tensor(std::uint32_t tensor) const;
  [[nodiscard]] Permissions permissions_of_all() const;
  [[nodiscard]] Permissions permissions_of_any() const;
  /// Reads the shard's mode and owner. @return true if they have changed.
  bool note_permissions(std::uint32_t shard);
  /// Call after a change of them: tells the caches without waiting for a commit.
  void forget_permissions(std::uint32_t shard) const;
  [[nodiscard]] ByteRange range_of(std::uint32_t tensor) const;
  /// All tensors of a shard.
  [[nodiscard]] Stale stale_shard(std::uint32_t shard, Stale::What what) const;
  [[nodiscard]] std::string label_of(std::uint32_t tensor) const;
  /// The pending content that the page cache of this file shows, if any.
  [[nodiscard]] std::shared_ptr<PendingContent> shared_content(Ino ino) const;
  /// EIO if the header was changed underneath, so that no offset in the archive can be trusted.
  [[nodiscard]] Result<const Archive*> unbroken_archive_of(std::uint32_t tensor) const;
  /// Returns a range of a tensor for a reply. The reply refers to the map if there is one.
  [[nodiscard]] Result<Bytes> read_archive(std::uint32_t tensor, ByteRange part) const;
  /// Copies bytes of the tensor, from `offset`.
  [[nodiscard]] Result<void> copy_archive(std::uint32_t tensor, std::uint64_t offset,
                                          std::span<std::byte> to) const;
  [[nodiscard]] ViewSource view_source() const;
  // `.safetensors` and its views (filesystem_views.cc).
  [[nodiscard]] Result<struct stat> stat_of_view(Ino ino) const;
  Result<void> read_view_directory(Ino directory, std::uint64_t position, const VisitEntry& visit) const;
  [[nodiscard]] Result<Bytes> read_pending(PendingContent& content, std::uint64_t offset,
                                           std::size_t size_bytes) const;
  /// Does the check of check_for_change(). The caller holds commit_mutex_.
  Change note_foreign_change(std::uint32_t shard);
  /// Notes that another program has changed bytes of the shard. The caller holds commit_mutex_. @return all
  /// tensors of the shard, as stale.
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
  /// Retries an attempt, each time with commit_mutex_ held, until it ends with another result than Busy or
  /// the lock patience ends. Between attempts other threads may commit, so waiting for another process's lock
  /// does not delay commits of bytes that are not locked.
  Result<void> commit_in_turn(const std::function<Result<void>()>& attempt);
  /// Notes that a tensor has just been committed.
  void note_commit(const PendingContent& content);
  [[nodiscard]] CloseFacts facts_of_close(const OpenFile& file, Owner owner, pid_t closer) const;
  /// True if another living process has opened the content for writing and has not closed it.
  [[nodiscard]] bool is_open_elsewhere(const PendingContent& content, pid_t process) const;
  void abandon_pending();
  // The caller holds commit_mutex_:
  /// Settles the kept journals, so that others may change the bytes that our last commits have named.
  void settle_journals();
  /// Makes a journal that further small commits share, once several small commits have come.
  void keep_journal(std::uint32_t shard);
  /// Removes that journal: its permissions fit those who could write the archive when the journal was made.
  /// The next small commit makes another one.
  void retire_journal(std::uint32_t shard);
  /// The options of a commit. Changes that others have made meanwhile go to `foreign`. ESTALE if no offset in
  /// the shard can be trusted any more.
  Result<CommitOptions> commit_options(std::uint32_t shard, Stale& foreign);
  Result<Stale> commit_if_dirty(const OpenFile& file);
  [[nodiscard]] Result<OpenFile*> just_opened(Ino ino, pid_t opener);
  [[nodiscard]] Error wrong_size(const PendingContent& content) const;
  /// The error for content whose writer was killed, or may have been.
  [[nodiscard]] Error killed(const PendingContent& content, pid_t closer, Ending ending) const;

  [[nodiscard]] Result<std::string> tensor_attribute(std::uint32_t tensor, std::string_view key) const;
  [[nodiscard]] Result<std::string> root_attribute(std::string_view key) const;
  [[nodiscard]] Result<std::string> view_attribute(Ino ino, std::string_view key) const;
  /// The path of a tensor's file from the mount's root.
  [[nodiscard]] std::string own_file(std::uint32_t tensor) const;
  /// Changes whenever a tensor's bytes change. The generation changes with others' changes. The turns of the
  /// tensor's lock change with our commits, since our commits change the generation only after the bytes.
  /// Other tensors with the same lock change the turns too.
  struct ContentState {
    std::uint64_t generation = 0;
    std::uint64_t turns = 0;
    friend bool operator==(const ContentState&, const ContentState&) = default;
  };
  [[nodiscard]] ContentState content_state(std::uint32_t tensor) const;
  /// Holds locks only for moments. EBUSY if the tensor keeps changing; EINTR if no caller waits for the
  /// checksum any more (cancellation.h).
  [[nodiscard]] Result<std::string> checksum(std::uint32_t tensor) const;
  /// @return nothing if the tensor was changed meanwhile.
  [[nodiscard]] Result<std::optional<std::string>> try_checksum(std::uint32_t tensor) const;

  std::unique_ptr<Model> model_;
  FilesystemOptions options_;
  std::function<void(Stale)> forget_ = [](Stale) {};
  std::shared_ptr<Activity> activity_;
  std::function<void()> note_commit_ = [this] { activity_->note_commit(); };
  InodeTable inodes_;
  const UnservedTensors unserved_;
  std::vector<ShardState> shards_;  // in the order of the model's shards
  std::unique_ptr<Views> views_;
  mutable TransactionDirectory transactions_;
  mutable std::vector<ReaderWriterLock> tensor_locks_;  // one for each tensor, if there are not too many
  // By tensor: the kernel's page cache may hold bytes of it. Set before the bytes are read, under no lock.
  // Checked after a commit, which keeps readers out.
  mutable std::vector<std::atomic<bool>> may_be_cached_;
  // The same for attributes. Set before the attributes are read, and again when the kernel has them.
  mutable std::vector<std::atomic<bool>> may_be_known_;
  inline static std::atomic<std::uint64_t> changes_ = 0;
  std::mutex commit_mutex_;
  std::optional<std::chrono::milliseconds> has_waited_{0};  // CommitOptions::has_waited; by commit_mutex_
  std::vector<std::uint32_t> untidy_;  // the shards that tidy() must handle; guarded by commit_mutex_
  std::atomic<bool> is_any_broken_ = false;
  std::atomic<bool> is_refused_ = false;

  mutable std::mutex state_mutex_;  // guards what follows; shared_count_ may be read without it
  std::string why_refused_;
  Permissions of_all_;  // these two combine the shards' permissions
  Permissions of_any_;
  std::unordered_map<std::uint32_t, State> changed_states_;
  std::unordered_map<OpenFile*, std::unique_ptr<OpenFile>> open_files_;
  std::uint64_t opens_ = 0;
  std::unordered_map<Ino, std::shared_ptr<PendingContent>> shared_contents_;
  std::atomic<std::size_t> shared_count_ = 0;  // the size of shared_contents_; every read checks it first
  struct KnownChecksum {
    ContentState state;
    std::string text;
  };
  mutable std::unordered_map<std::uint32_t, KnownChecksum> checksums_;
};

}  // namespace stfs
