// The file system of one model: the requests of the kernel, and what they do with its parts (model_parts.h
// lists them). It uses no FUSE type, so tests drive it without a kernel.
//
// Inode numbers in calls and results are those of the mount (fs/tree/inode_space.h). ModelParts::resolve()
// alone decodes them.
//
// Any thread may call anything. Locks are taken in this order:
//   StructureEdits' mutex    one edit of the structure at a time
//   PendingContent::mutex    guards one writer's pending bytes; readers may enter during its commit
//   Committer::turn          one attempt to commit, or one check for foreign changes, of a shard at a time; a
//                            large commit lends it to small ones of other tensors (write/commit_turn.h)
//   TransactionGroup::mutex  guards the stages of a transaction
//   TensorReader::lock_of()  shared while a reply refers to the map; exclusive for two moments of a commit
//   Archive's locks          guard overlays and identity
//   the last ones            the mutexes of OpenFiles, TensorStates, ShardPermissions, TransactionDirectory,
//                            Views and PretrainedDirectory, each held only for moments
// A thread that waits for another process's lock has no turn (fs/model/shard_writer.h). No lock is
// held when a call returns, except the tensor's shared lock inside a Bytes.
//
// Waiting: all calls for files in `.safetensors/pretrained` wait for a disk. Else attributes() takes
// only mutexes of the last rank. No thread holds them while it writes, syncs or locks a file. read() takes
// the content's mutex for reading, then the tensor's lock: both wait only for copies in memory. Commits wait
// for the disk and for other processes' locks. A small one waits for no large one of another tensor.
#pragma once

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/model/model.h"
#include "core/storage/disk_space.h"
#include "fs/model/attribute_reader.h"
#include "fs/model/checkpoint_files.h"
#include "fs/model/content_commits.h"
#include "fs/model/draft_files.h"
#include "fs/model/file_label.h"
#include "fs/model/file_reader.h"
#include "fs/model/file_stats.h"
#include "fs/model/foreign_changes.h"
#include "fs/model/model_parts.h"
#include "fs/model/scratch_files.h"
#include "fs/model/served_files.h"
#include "fs/model/staged_files.h"
#include "fs/model/structure_edits.h"
#include "fs/model/tensor_names.h"
#include "fs/write/close_decision.h"

namespace stfs {

class Filesystem {
 public:
  using Stat = struct stat;  // `stat` alone is the function

  Filesystem(std::unique_ptr<Model> model, const FilesystemOptions& options);
  /// A file system of a single archive.
  Filesystem(std::unique_ptr<Archive> archive, const FilesystemOptions& options);

  /// Gives the file system its inode numbers in the mount. Set before the first call; without it the file
  /// system is alone.
  void number_in(InodeSpace space) { parts_.space = space; }

  // The tree. ENOENT if a name or a number does not exist; EIO for a tensor that the model's index names but
  // none of its shards can serve.
  /// For a view whose file goes with its last look-up (Views::is_counted(), Views::whole()), the caller must
  /// call forget() in the end. For others, after note_lookup().
  [[nodiscard]] Result<struct stat> lookup(Ino parent, std::string_view name) const;
  void forget(Ino ino, std::uint64_t lookups);
  /// Call for each look-up of a file that the kernel gets. Such views have been counted by lookup().
  void note_lookup(Ino ino) const;
  /// Call when the kernel has a reply of lookup() or attributes(), which it may cache.
  void note_told(Ino ino) const;
  /// A counter that grows with each change that makes cached attributes of any file stale.
  static std::uint64_t changes() { return ModelParts::changes; }
  /// Calls visit for those inodes of a range that the kernel may have cached, with the part of them that it
  /// may have. These inodes count as forgotten from then on.
  using VisitCached = std::function<void(Ino ino, Stale::What what)>;
  void visit_cached(const Stale& stale, const VisitCached& visit) const;
  /// Views::slice_to_forget().
  std::optional<std::string> slice_to_forget() { return parts_.views.slice_to_forget(); }
  [[nodiscard]] Result<struct stat> attributes(Ino ino) const;
  /// Calls visit for `.`, `..` and the children until visit returns false. Begins at `position`: 0 the first
  /// time, then the position at which an earlier call ended. visit gets the position of the next entry.
  using VisitEntry = Directory::VisitEntry;
  Result<void> read_directory(Ino directory, std::uint64_t position, const VisitEntry& visit) const;
  /// S_IFDIR or S_IFREG.
  [[nodiscard]] mode_t file_type(Ino ino) const;
  /// The size of the archives, and what is free in them.
  [[nodiscard]] struct statvfs statistics() const;
  /// The free space of the store to which new tensors go. Nothing if the mount is read-only, or if the store
  /// does not tell. May wait for the store.
  [[nodiscard]] std::optional<FreeSpace> free_space() const;

  // Transactions over many tensors (transaction_directory.h), and directories of layout=tree. EPERM in all
  // other directories.
  /// @param maker  if other users may enter the mount, only the maker may commit, remove or see the
  ///               transaction's staged content.
  /// @param mode   the permissions of a directory in pretrained/.
  Result<struct stat> make_directory(Ino parent, std::string_view name, Maker maker = {}, mode_t mode = 0777);
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
  using Created = CreatedFile;
  /// @param mode   the permissions of a file in pretrained/, after the umask of the program.
  /// @param maker  such a file belongs to this user.
  Result<Created> create(Ino parent, std::string_view name, int flags, pid_t opener, mode_t mode = 0666,
                         const Maker& maker = {});
  /// Whether the kernel may not cache the listing of the directory, since files of other mounts come and go.
  [[nodiscard]] bool lists_scratch(Ino directory) const {
    return parts_.resolve(directory).kind == Node::Kind::Directory && scratch_.may_be_listed();
  }
  /// Whether the kernel may keep name and attributes of a file: not of one that is no tensor yet.
  [[nodiscard]] bool is_draft(Ino ino) const { return parts_.resolve(ino).kind == Node::Kind::Draft; }
  /// Whether a number is one of a file of the source directory, in `.safetensors/pretrained`. Such a file has
  /// no OpenFile. Requests on its bytes and attributes go to served_files().
  [[nodiscard]] bool is_source_file(Ino ino) const { return parts_.resolve(ino).is_source_file(); }
  [[nodiscard]] ServedFiles& served_files() { return pretrained_; }
  [[nodiscard]] Node node_of(Ino ino) const { return parts_.resolve(ino); }
  /// PretrainedDirectory::is_changed().
  [[nodiscard]] bool is_source_changed(Ino ino) const {
    return parts_.pretrained.is_changed(InodeSpace::local(ino));
  }

  // Extended attributes. ENODATA if there is none of that name.
  [[nodiscard]] Result<std::string> extended_attribute(Ino ino, std::string_view name) const {
    return attributes_.get(ino, name);
  }
  [[nodiscard]] Result<std::vector<std::string>> list_extended_attributes(Ino ino,
                                                                          const Maker& caller = {}) const {
    return attributes_.list(ino, caller);
  }

  // Files. The flags are those of open(2). O_TRUNC is ignored, since the kernel sends a separate resize.
  /// Returns null for a read-only descriptor, which has no state. The file system owns the OpenFile until
  /// release().
  Result<OpenFile*> open(Ino ino, int flags, pid_t opener);
  /// FileReader::read().
  [[nodiscard]] Result<Bytes> read(Ino ino, std::uint64_t offset, std::size_t size_bytes) const {
    return reader_.read(ino, offset, size_bytes);
  }
  /// FileReader::same_file().
  [[nodiscard]] std::optional<int> same_file(Ino ino) const { return reader_.same_file(ino); }
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
  /// Whether size and times of the file may be set: EROFS on a read-only mount, EPERM for a view that no
  /// program can write to.
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

  /// ForeignChanges::check_for_change(), without is_edited.
  using Change = ForeignChanges::Change;
  /// Follows edits of other processes (StructureEdits::follow()).
  Change check_for_change(std::uint32_t shard = 0);
  /// The same for the model's index.
  Change check_index();
  /// Makes every later look-up of files that show tensors fail with EIO and this message. Programs keep what
  /// they have open, except tensors of a delta's base whose bytes somebody has changed: they give EIO.
  void refuse(std::string why);
  [[nodiscard]] bool is_refused() const { return parts_.is_refused; }
  /// Notes that another file system shows the model now.
  void note_replaced() { is_replaced_ = true; }
  [[nodiscard]] bool is_replaced() const { return is_replaced_; }
  /// Visits the entries that the kernel may have cached, except those of the root. The entries of a directory
  /// come before the directory's own.
  void visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const;
  /// The newest generation of all tensors.
  [[nodiscard]] std::uint64_t newest_generation() const { return parts_.states.newest_generation(); }
  /// Call some time after commits, when no caller waits: settles the journal that is kept for the next
  /// commit, closes discarded files, and frees the space of deleted tensors that nobody has open any more.
  void tidy();
  /// Call when no commit has come for a while: moves tensors into the gaps that edits have left.
  void close_gaps();
  /// Whether an edit has replaced the index since the last call: a watch on the file must begin anew.
  [[nodiscard]] bool take_new_index() { return structure_.take_new_index(); }
  /// Drops and logs staged content, and removes the journal that was kept. Call at the end of the mount, when
  /// no other call is running.
  void end();

  /// ModelParts::stale_views().
  [[nodiscard]] std::vector<Stale> stale_views(const Stale& stale) { return parts_.stale_views(stale); }
  /// `forget` runs for caches that became stale outside of a call that could return them, views first. Set
  /// before the first call.
  void tell_stale_to(const std::function<void(Stale)>& forget) {
    parts_.forget = [this, forget](Stale stale) {
      for (const Stale& view : stale_views(stale)) forget(view);
      forget(stale);
    };
  }

  /// `tell` runs for what an edit has made stale that a close has committed. Set before the first call.
  void tell_outdated_to(std::function<void(const Outdated&)> tell) { parts_.tell_outdated = std::move(tell); }

  /// `show` opens the model anew, in which this file system has replaced the archive, and returns what the
  /// kernel must forget. Without it checkpoints are saved in place. Set before the first call.
  void show_replacement_by(std::function<Outdated()> show) { parts_.show_replacement = std::move(show); }

  /// `note` runs after each commit, so that its receiver calls tidy(). Set before the first call.
  void tell_commits_to(const std::function<void()>& note) {
    parts_.wake_janitor = note;
    parts_.note_commit = [this, note] {
      parts_.activity->note_commit();
      note();
    };
  }
  /// The counts of requests, for `.safetensors/stats.json`.
  [[nodiscard]] const std::shared_ptr<Activity>& activity() const { return parts_.activity; }

  /// What a call reads of the model stays valid while it holds the pin.
  [[nodiscard]] Epochs::Pin pin() const { return parts_.epochs.pin(); }
  /// file_label(), for messages.
  [[nodiscard]] std::string label_of(Ino ino, std::string_view name) const {
    return file_label(parts_, ino, name);
  }
  [[nodiscard]] bool is_read_only() const { return parts_.options.is_read_only; }
  /// Whether reads fail because another program has written to the model (fails_on_change).
  [[nodiscard]] bool is_changed() const { return parts_.reader.is_any_changed(); }
  /// Whether the shard's path names the file that is open, as far as its store tells.
  [[nodiscard]] bool is_at_path(std::uint32_t shard) const;
  [[nodiscard]] const Model& model() const { return *parts_.model; }
  /// The first shard that can be used. For a single archive: that archive.
  [[nodiscard]] const ArchiveReader& archive() const { return parts_.model->front(); }

 private:
  [[nodiscard]] Result<struct stat> show(const Node& found) const;
  /// The tensor that a file shows whose look-ups are counted by tensor: its own file, views with a fixed
  /// number, a transaction's file.
  [[nodiscard]] std::optional<TensorId> tensor_behind(Ino ino) const;
  /// Writes in parallel with writes to other places, if only a failing disk can refuse the bytes. Accepts the
  /// bytes first, and lets other writes in while it stages them.
  /// @return nothing if the write cannot run in parallel; then nothing was done.
  // Clang cannot follow the lock: it is given up while a write is aside.
  std::optional<Result<void>> write_beside(PendingContent& content, std::span<const std::byte> from,
                                           std::uint64_t offset, Caller caller,
                                           const std::function<void()>& accept) NO_THREAD_SAFETY_ANALYSIS;
  /// Notes that bytes were refused. @return the error for their writer.
  tl::unexpected<Error> refuse(PendingContent& content, Error why) REQUIRES(content.mutex);
  Result<void> stage(PendingContent& content, std::span<const std::byte> from, std::uint64_t offset)
      REQUIRES(content.mutex);
  // The caller holds the content's mutex:
  [[nodiscard]] CloseFacts facts_of_close(const OpenFile& file, Owner owner, pid_t closer) const;
  Result<Stale> commit_if_dirty(const OpenFile& file);
  /// Commits what was written to a file that a program has made, or to a checkpoint.
  Result<Stale> commit_new(const OpenFile& file);
  [[nodiscard]] Error wrong_size(const PendingContent& content) const;
  /// The error for content whose writer was killed, or may have been.
  [[nodiscard]] Error killed(const PendingContent& content, pid_t closer, Ending ending) const
      REQUIRES(content.mutex);

  void abandon_pending();

  // Each uses those before it.
  mutable ModelParts parts_;
  ForeignChanges foreign_{parts_};
  StructureEdits structure_{parts_, foreign_};
  ServedFiles pretrained_{parts_.pretrained, parts_.options, [this] {
                            // The delta on top is the last shard.
                            const auto count = static_cast<std::uint32_t>(parts_.model->shards().size());
                            return parts_.permissions.of_shard(count - 1);
                          }};
  FileStats stats_{parts_, pretrained_};
  FileReader reader_{parts_, stats_, pretrained_};
  AttributeReader attributes_{parts_, foreign_};
  ContentCommits contents_{parts_, foreign_, structure_};
  CheckpointFiles checkpoints_{parts_, foreign_, structure_, stats_};
  ScratchFiles scratch_{parts_};
  DraftFiles drafts_{parts_, structure_, contents_, stats_, reader_, scratch_};
  StagedFiles staged_{parts_, structure_, contents_, drafts_, stats_};
  TensorNames names_{parts_, structure_, drafts_, scratch_, stats_};

  std::atomic<bool> is_replaced_ = false;
  mutable Mutex refusal_mutex_;
  std::string why_refused_ GUARDED_BY(refusal_mutex_);
};

/// Adds the free space of a store to what statistics() has found.
void add_free_space(const FreeSpace& space, struct statvfs& st);

}  // namespace stfs
