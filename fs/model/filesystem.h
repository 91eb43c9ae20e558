// What the files of a mount mean: every rule of the tree, of reading, writing and committing, without a
// FUSE type in sight, so that tests drive it without a kernel.
//
// Any thread may call anything. Locks, in the order in which they are taken:
//   PendingContent::mutex    one writer's pending bytes; readers come in beside its commit
//   commit_mutex_            one attempt to commit, or one look for foreign changes, at a time
//   TransactionGroup::mutex  the stages of a transaction
//   tensor_locks_[...]       shared while a reply is made from the map; exclusive for two moments of a commit
//   Archive's locks          overlays and identity
//   state_mutex_             generations, times, permissions; beside it TransactionDirectory's and Views' own
// commit_mutex_ is not held while another process's lock is waited for (commit_in_turn). No lock is held when
// a call returns, except the tensor's shared one inside a Bytes.
//
// Who waits for whom: attributes() takes state_mutex_ and mutexes like it, which nobody holds while a file is
// written, synced or locked. read() takes the content's mutex for reading, then the tensor's lock: both wait
// for copies in memory only. What commits waits for the disk, and for locks of other processes.
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
  std::optional<uid_t> uid;  // default: the archive's
  std::optional<gid_t> gid;
  mode_t umask = 0;
  bool is_shared = false;  // other users may enter
  CommitOptions commit;
  /// What has been counted of the model so far; its own, new, without.
  std::shared_ptr<Activity> activity;
  std::uint64_t least_generation = 0;  // of every tensor
};

class Filesystem {
 public:
  using Stat = struct stat;  // `stat` alone is the function

  Filesystem(std::unique_ptr<Model> model, const FilesystemOptions& options);
  /// Of a single archive.
  Filesystem(std::unique_ptr<Archive> archive, const FilesystemOptions& options);

  // The tree. ENOENT where a name or a number does not exist; EIO for a tensor that the model's index names
  // and none of its shards can serve.
  /// Of a file that Views::is_counted(), forget() must follow in the end.
  [[nodiscard]] Result<struct stat> lookup(Ino parent, std::string_view name) const;
  void forget(Ino ino, std::uint64_t lookups) { views_->forget(ino, lookups); }
  /// The kernel has an answer of lookup() or attributes() now: it may be in its caches.
  void note_told(Ino ino) const;
  /// A number that is another one after each change that makes cached attributes of any file stale.
  static std::uint64_t changes() { return changes_; }
  /// Calls visit for those inodes of a range that the kernel may have in its caches, and for what of them;
  /// takes them for forgotten then.
  using VisitCached = std::function<void(Ino ino, Stale::What what)>;
  void visit_cached(const Stale& stale, const VisitCached& visit) const;
  /// Views::slice_to_forget().
  std::optional<std::string> slice_to_forget() { return views_->slice_to_forget(); }
  [[nodiscard]] Result<struct stat> attributes(Ino ino) const;
  /// Calls visit for `.`, `..` and the children, from the position on that an earlier call ended at
  /// (0 at first), until visit returns false. `position` is the next one's.
  using VisitEntry = std::function<bool(std::string_view name, Ino ino, std::uint64_t position)>;
  Result<void> read_directory(Ino directory, std::uint64_t position, const VisitEntry& visit) const;
  [[nodiscard]] bool is_directory(Ino ino) const;
  [[nodiscard]] struct statvfs statistics() const;

  // Transactions over many tensors (transaction_directory.h). EPERM everywhere but there.
  /// @param maker  alone may commit or remove it, and look at what is staged in it, where other users may
  /// enter.
  Result<struct stat> make_directory(Ino parent, std::string_view name, Maker maker = {});
  Result<void> remove_directory(Ino parent, std::string_view name);
  Result<void> remove_file(Ino parent, std::string_view name);
  /// A move to `committed` is the commit: all of the transaction's tensors change, or none.
  Result<std::vector<Stale>> rename(Ino parent, std::string_view name, Ino new_parent,
                                    std::string_view new_name);

  // Extended attributes. ENODATA where there is none of that name.
  [[nodiscard]] Result<std::string> extended_attribute(Ino ino, std::string_view name) const;
  [[nodiscard]] Result<std::vector<std::string>> list_extended_attributes(Ino ino) const;

  // Files. flags as open(2)'s; O_TRUNC is not looked at: the kernel sends a resize of its own.
  /// Null for a read-only descriptor, which has no state. The file system owns it until release().
  Result<OpenFile*> open(Ino ino, int flags, pid_t opener);
  /// Fewer bytes than asked for only at the end of the file.
  Result<Bytes> read(Ino ino, std::uint64_t offset, std::size_t size_bytes) const;
  /// The descriptor of a file that holds the same bytes at the same offsets and will, whatever we do: of
  /// `archive.safetensors`, of a single archive whose data begin at a page, where nothing of ours can write
  /// to it.
  [[nodiscard]] std::optional<int> same_file(Ino ino) const;
  /// Stages. A synchronous descriptor commits too, as soon as the content is whole. EFBIG past the end.
  /// @param accept  called where nothing but a failing disk can refuse the bytes any more, before they are
  ///                staged: the writer may go on meanwhile, and hears of such a failure from its next call,
  ///                its close at the latest. The file may be gone then when this returns.
  Result<Stale> write(OpenFile& file, std::span<const std::byte> from, std::uint64_t offset, Caller caller,
                      const std::function<void()>& accept = {});
  /// What the kernel writes back from a shared mapping, through whichever descriptor it found.
  Result<void> write_back(Ino ino, std::span<const std::byte> from, std::uint64_t offset);
  Result<void> resize(OpenFile& file, std::uint64_t size_bytes, Caller caller);
  /// A resize that names no descriptor. To 0 from a thread that has just opened the tensor: the O_TRUNC
  /// of that open. Else truncate(2) by name, and a tensor's size is fixed: only its own is accepted.
  Result<void> resize_by_name(Ino ino, std::uint64_t size_bytes, pid_t caller);
  /// utimensat: kept in memory only. The commit of what was written before keeps it; in a transaction it
  /// shows with the commit.
  void set_mtime(Ino ino, struct timespec mtime);
  /// A close of one descriptor: close_decision.h says what it does.
  Result<Stale> flush(OpenFile& file, Owner owner, pid_t closer);
  Result<Stale> sync(OpenFile& file);
  /// The descriptor's last copy and its mappings have gone; as close_decision.h says. Errors go to the log.
  Stale release(OpenFile* file);

  /// What a look for others' changes has found.
  struct Change {
    Stale stale;
    /// Another archive lies at the path, or the header is another one: the model is to be opened anew.
    bool is_outdated = false;
    /// Mode or owner of the file: the directories show others now, too.
    bool has_new_permissions = false;
    /// The store has failed: nobody can tell.
    bool is_unknown = false;
  };
  /// Looks whether somebody else has changed a shard; then every tensor in it may be another one now.
  Change check_for_change(std::uint32_t shard = 0);
  /// From now on every look-up of what shows tensors fails with EIO and this message. Who has something open
  /// goes on with it.
  void refuse(std::string why);
  [[nodiscard]] bool is_refused() const { return is_refused_; }
  /// Entries that the kernel may know, but for those of the root; what lies in a directory comes before it.
  void visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const;
  /// No tensor has a later one.
  [[nodiscard]] std::uint64_t newest_generation() const;
  /// After commits, when nobody waits any more: settles the journal that is kept for the next one, and closes
  /// files.
  void tidy();
  /// Drops and logs what is still staged, and removes the journal that was kept: at the end of the mount,
  /// when no other call is under way.
  void end();

  /// The views, and the files of transactions, that show what has become stale: to be forgotten with it.
  [[nodiscard]] std::vector<Stale> stale_views(const Stale& stale);
  /// Where caches that became stale without a call to answer are told, their views first; set before the
  /// first call.
  void tell_stale_to(const std::function<void(Stale)>& forget) {
    forget_ = [this, forget](Stale stale) {
      for (const Stale& view : stale_views(stale)) forget(view);
      forget(stale);
    };
  }

  /// Who calls tidy() is told of each commit; set before the first call.
  void tell_commits_to(const std::function<void()>& note) {
    note_commit_ = [this, note] {
      activity_->note_commit();
      note();
    };
  }
  /// Where requests are counted, for `.safetensors/stats.json`.
  [[nodiscard]] const std::shared_ptr<Activity>& activity() const { return activity_; }

  /// A view: nobody may write to it, EROFS.
  [[nodiscard]] static bool is_view(Ino ino) { return Views::owns(ino); }

  [[nodiscard]] bool is_read_only() const { return options_.is_read_only; }
  [[nodiscard]] const Model& model() const { return *model_; }
  /// The first that can be used: of a single archive, that one.
  [[nodiscard]] const Archive& archive() const { return model_->front(); }

 private:
  struct State {
    std::uint64_t generation = 0;
    struct timespec mtime {};
  };
  static constexpr std::size_t kMostTensorLocks = 1024;

  /// What the mount knows of a shard.
  struct ShardState {
    std::atomic<bool> is_broken = false;     // the header is another one
    std::atomic<bool> is_gone = false;       // no file lies at the path: said so once
    std::atomic<bool> is_unknown = false;    // the store fails a look at it: said so once
    bool is_untidy = false;                  // in untidy_; guarded by commit_mutex_
    State common;                            // of every tensor that no commit has changed; by state_mutex_
    std::optional<Permissions> permissions;  // without a file: none; by state_mutex_
  };
  [[nodiscard]] const ShardState& shard_of(std::uint32_t tensor) const {
    return shards_[model_->place(tensor).shard];
  }
  [[nodiscard]] ReaderWriterLock& lock_of(TensorPlace place) const {
    return tensor_locks_[(place.shard + place.tensor) % tensor_locks_.size()];
  }
  [[nodiscard]] bool exists(Ino ino) const;
  /// Position of the tensor that a file shows; only for what is no directory.
  [[nodiscard]] std::uint32_t tensor_of(Ino ino) const;
  [[nodiscard]] static struct timespec timespec_of(std::int64_t ns);
  [[nodiscard]] struct stat stat_of(Ino ino) const;
  [[nodiscard]] Result<struct stat> lookup_unrefused(Ino parent, std::string_view name) const;
  [[nodiscard]] State state_of(std::uint32_t tensor) const;
  // What the mount shows of the archives' modes and owners: of a tensor, its shard's; of views of several
  // shards, what all of them allow; of directories, what one of them allows.
  [[nodiscard]] Permissions permissions_of_tensor(std::uint32_t tensor) const;
  [[nodiscard]] Permissions permissions_of_all() const;
  [[nodiscard]] Permissions permissions_of_any() const;
  /// Looks at them. @return whether they are others than before.
  bool note_permissions(std::uint32_t shard);
  /// They are: tells the caches, without waiting for a commit.
  void forget_permissions(std::uint32_t shard) const;
  [[nodiscard]] ByteRange range_of(std::uint32_t tensor) const;
  /// All tensors of a shard.
  [[nodiscard]] Stale stale_shard(std::uint32_t shard, Stale::What what) const;
  [[nodiscard]] std::string label_of(std::uint32_t tensor) const;
  /// The pending content that the page cache of this file shows, if any.
  [[nodiscard]] std::shared_ptr<PendingContent> shared_content(Ino ino) const;
  /// EIO where no offset in it can be trusted any more.
  [[nodiscard]] Result<const Archive*> unbroken_archive_of(std::uint32_t tensor) const;
  /// A range of a tensor for a reply, in the map where there is one.
  [[nodiscard]] Result<Bytes> read_archive(std::uint32_t tensor, ByteRange part) const;
  /// Copies what lies in the tensor from `offset` on.
  [[nodiscard]] Result<void> copy_archive(std::uint32_t tensor, std::uint64_t offset,
                                          std::span<std::byte> to) const;
  [[nodiscard]] ViewSource view_source() const;
  // Of `.safetensors` (filesystem_views.cc).
  [[nodiscard]] Result<struct stat> stat_of_view(Ino ino) const;
  Result<void> read_view_directory(Ino directory, std::uint64_t position, const VisitEntry& visit) const;
  [[nodiscard]] Result<Bytes> read_pending(PendingContent& content, std::uint64_t offset,
                                           std::size_t size_bytes) const;
  /// check_for_change(), with the commit's mutex held.
  Change note_foreign_change(std::uint32_t shard);
  /// With the commit's mutex held: somebody else has changed bytes of the shard. @return all of it.
  Stale note_touched(std::uint32_t shard);
  /// Where the bytes go beside others' and nothing but a failing disk can refuse them: accepts them first,
  /// and lets further writes to other places come while it stages them.
  /// @return nothing where not: nothing was done.
  std::optional<Result<void>> write_beside(PendingContent& content, std::span<const std::byte> from,
                                           std::uint64_t offset, Caller caller,
                                           const std::function<void()>& accept);
  // With the content's mutex held:
  /// Notes that bytes were refused. @return why, for who has sent them.
  tl::unexpected<Error> refuse(PendingContent& content, Error why);
  Result<void> stage(PendingContent& content, std::span<const std::byte> from, std::uint64_t offset);
  Result<Stale> commit(const OpenFile& file);
  /// Runs attempts with the commit's mutex held, until one does not end with Busy or patience ends. In
  /// between, others commit: who waits for another process's lock keeps nobody from bytes that are not
  /// locked.
  Result<void> commit_in_turn(const std::function<Result<void>()>& attempt);
  /// Notes that a tensor was committed just now.
  void note_commit(const PendingContent& content);
  [[nodiscard]] CloseFacts facts_of_close(const OpenFile& file, Owner owner, pid_t closer) const;
  /// Another living process has opened the content for writing and has not closed it.
  [[nodiscard]] bool is_open_elsewhere(const PendingContent& content, pid_t process) const;
  void abandon_pending();
  /// With the commit's mutex held: others may change what our last commits have named.
  void settle_journals();
  /// With the commit's mutex held: makes the journal that further small commits go through, once they are
  /// seen to come.
  void keep_journal(std::uint32_t shard);
  /// With the commit's mutex held: removes that journal, which is for those who could write the archive when
  /// it was made. The next small commit makes another one.
  void retire_journal(std::uint32_t shard);
  /// For a commit, with its mutex held: what others have changed in the meantime goes to `foreign`. ESTALE
  /// where no offset in the shard can be trusted any more.
  Result<CommitOptions> commit_options(std::uint32_t shard, Stale& foreign);
  Result<Stale> commit_if_dirty(const OpenFile& file);
  [[nodiscard]] Result<OpenFile*> just_opened(Ino ino, pid_t opener);
  [[nodiscard]] Error wrong_size(const PendingContent& content) const;
  /// Of a writer that a signal ends; logged.
  [[nodiscard]] Error killed(const PendingContent& content, pid_t closer, Ending ending) const;

  [[nodiscard]] Result<std::string> tensor_attribute(std::uint32_t tensor, std::string_view key) const;
  [[nodiscard]] Result<std::string> root_attribute(std::string_view key) const;
  [[nodiscard]] Result<std::string> view_attribute(Ino ino, std::string_view key) const;
  /// The path of a tensor's file from the mount's root.
  [[nodiscard]] std::string own_file(std::uint32_t tensor) const;
  /// What moves whenever a tensor's bytes do: the generation for changes of others, the turns of its lock for
  /// ours, whose generation comes later than their bytes. Other tensors of the same lock move the turns too.
  struct ContentState {
    std::uint64_t generation = 0;
    std::uint64_t turns = 0;
    friend bool operator==(const ContentState&, const ContentState&) = default;
  };
  [[nodiscard]] ContentState content_state(std::uint32_t tensor) const;
  /// Holds no lock for longer than a look. EBUSY where the tensor changes again and again, EINTR where nobody
  /// waits for the sum any more (cancellation.h).
  [[nodiscard]] Result<std::string> checksum(std::uint32_t tensor) const;
  /// @return nothing where the tensor was changed meanwhile.
  [[nodiscard]] Result<std::optional<std::string>> try_checksum(std::uint32_t tensor) const;

  std::unique_ptr<Model> model_;
  FilesystemOptions options_;
  std::function<void(Stale)> forget_ = [](Stale) {};
  std::shared_ptr<Activity> activity_;
  std::function<void()> note_commit_ = [this] { activity_->note_commit(); };
  InodeTable inodes_;
  const UnservedTensors unserved_;
  std::vector<ShardState> shards_;  // as the model's
  std::unique_ptr<Views> views_;
  mutable TransactionDirectory transactions_;
  mutable std::vector<ReaderWriterLock> tensor_locks_;  // one for each tensor, if there are not too many
  // By tensor: the kernel's page cache may hold bytes of it. Set before they are read, under no lock; looked
  // at after a commit, which keeps readers out.
  mutable std::vector<std::atomic<bool>> may_be_cached_;
  // The same of attributes. Set before they are looked at, and again when the kernel has them.
  mutable std::vector<std::atomic<bool>> may_be_known_;
  inline static std::atomic<std::uint64_t> changes_ = 0;
  std::mutex commit_mutex_;
  std::optional<std::chrono::milliseconds> has_waited_{0};  // of the attempt; guarded by commit_mutex_
  std::vector<std::uint32_t> untidy_;  // shards that tidy() is to look at; guarded by commit_mutex_
  std::atomic<bool> is_any_broken_ = false;
  std::atomic<bool> is_refused_ = false;

  mutable std::mutex state_mutex_;  // guards what follows, but for the counter's unlocked look
  std::string why_refused_;
  Permissions of_all_;  // folded of the shards'
  Permissions of_any_;
  std::unordered_map<std::uint32_t, State> changed_states_;
  std::unordered_map<OpenFile*, std::unique_ptr<OpenFile>> open_files_;
  std::uint64_t opens_ = 0;
  std::unordered_map<Ino, std::shared_ptr<PendingContent>> shared_contents_;
  std::atomic<std::size_t> shared_count_ = 0;  // their number: every read looks here first
  struct KnownChecksum {
    ContentState state;
    std::string text;
  };
  mutable std::unordered_map<std::uint32_t, KnownChecksum> checksums_;
};

}  // namespace stfs
