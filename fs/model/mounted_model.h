// One model of a mount: its state, and the kernel's requests on its files. The class uses no FUSE type, so
// tests drive it without a kernel. Several files define its functions:
//
//   mounted_model.cc               nodes, ids, labels, rights to change the model: all other files use it
//   mounted_model_lookup.cc        look-ups, listings, and records of the kernel's caches
//   mounted_model_status.cc        attributes of files and directories
//   mounted_model_attributes.cc    extended attributes
//   mounted_model_read.cc          bytes of all files
//   mounted_model_write.cc         opens and writes
//   mounted_model_close.cc         closes and syncs, and the end of the mount
//   mounted_model_commit.cc        commits of bytes that are staged for one tensor
//   mounted_model_names.cc         mkdir, rmdir, unlink, rename and setxattr of all files
//   mounted_model_tree.cc          new names and forms of tensors, directories of layout=tree, metadata
//   mounted_model_scratch.cc       files without a form, in the tree and beside the archive
//   mounted_model_drafts.cc        files that become tensors
//   mounted_model_checkpoints.cc   whole checkpoints that programs write
//   mounted_model_transactions.cc  files in transactions, and the commit of a transaction
//
// Four other classes have their own state. StructureEdits makes edits and follows edits of other processes,
// ForeignChanges checks for changes by other programs, ShardWriter takes the turns of shards for a commit,
// and ServedFiles serves the source directory.
//
// Arguments and results have inode numbers of the mount (fs/tree/inode_space.h). Only node_of() decodes them.
//
// Any thread may call any function. Locks are taken in this order:
//   StructureEdits' mutex    one edit of the structure at a time
//   PendingFile::mutex       guards one writer's pending bytes; readers may enter during its commit
//   Committer::turn          one attempt to commit, or one check for foreign changes, of a shard at a time; a
//                            large commit lends it to small ones of other tensors (write/commit_turn.h)
//   TransactionGroup::mutex  guards the stages of a transaction
//   TensorReader::lock_of()  shared while a reply refers to the map; exclusive for two moments of a commit
//   Archive's locks          guard overlays and identity
//   the last ones            the mutexes of OpenFiles, TensorStates, ShardPermissions, TransactionDirectory,
//                            Views and PretrainedDirectory, each held only for moments
// A thread that waits for another process's lock holds no turn (fs/model/shard_writer.h). No lock is held
// when a call returns, except the tensor's shared lock inside a Bytes.
//
// Which calls wait: every call on a file in `.safetensors/pretrained` may wait for a disk. For other files,
// attributes() takes only mutexes of the last rank; no thread holds one of these while it writes, syncs or
// locks a file. read() takes the content's mutex for reading, then the tensor's lock; both wait only for
// copies in memory. A commit waits for the disk and for other processes' locks. A small commit does not wait
// for a large commit of another tensor.
#pragma once

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/model/model.h"
#include "core/model/scratch_directory.h"
#include "core/storage/disk_space.h"
#include "fs/base/maker.h"
#include "fs/base/user_counts.h"
#include "fs/model/foreign_changes.h"
#include "fs/model/hidden_directory.h"
#include "fs/model/mounted_model_options.h"
#include "fs/model/served_files.h"
#include "fs/model/structure_edits.h"
#include "fs/read/pretrained_directory.h"
#include "fs/read/shard_permissions.h"
#include "fs/read/tensor_reader.h"
#include "fs/read/tensor_states.h"
#include "fs/read/views.h"
#include "fs/tree/bytes.h"
#include "fs/tree/inode_space.h"
#include "fs/tree/inode_table.h"
#include "fs/tree/per_tensor.h"
#include "fs/tree/snapshot.h"
#include "fs/tree/tensor_tree.h"
#include "fs/write/close_decision.h"
#include "fs/write/committers.h"
#include "fs/write/drafts.h"
#include "fs/write/new_tensor.h"
#include "fs/write/open_files.h"
#include "fs/write/transaction_directory.h"

namespace stfs {

/// A file that a program has just made and opened.
struct CreatedFile {
  struct stat status {};
  OpenFile* file = nullptr;
};

class MountedModel {
 public:
  MountedModel(std::unique_ptr<Model> opened, const MountedModelOptions& options);
  /// A model of a single archive.
  MountedModel(std::unique_ptr<Archive> archive, const MountedModelOptions& options);
  MountedModel(const MountedModel&) = delete;
  MountedModel& operator=(const MountedModel&) = delete;
  ~MountedModel() = default;

  /// Gives the model its inode numbers in the mount. Set before the first call. Without this call the numbers
  /// of the mount are the numbers of the model.
  void number_in(InodeSpace space) { space_ = space; }
  /// Decodes an inode number.
  /// @param ino  a number of the mount, or of the model.
  [[nodiscard]] Node node_of(Ino ino) const;

  // The tree. The error is ENOENT if a name or a number does not exist, and EIO for a tensor that the model's
  // index names but no shard can serve.
  /// Looks up a name. Also counts the look-up if the file is a view of one of these kinds:
  /// Views::is_counted(), Views::whole(). For such a file the caller must call forget() later. note_lookup()
  /// counts the look-ups of other files.
  /// @param name  kSameFile: finds the file `parent` itself, which the kernel has forgotten. ENOENT for a
  ///              draft and for a view of Views::is_counted(): its number ends with the last look-up.
  [[nodiscard]] Result<struct stat> lookup(Ino parent, std::string_view name) const;
  static constexpr std::string_view kSameFile = ".";
  void forget(Ino ino, std::uint64_t lookups);
  /// Call for each look-up that the kernel gets a reply to. Has no effect on the views that lookup() counts.
  void note_lookup(Ino ino) const;
  /// Call when the kernel has got a reply of lookup() or attributes(), because it may cache the reply.
  void note_told(Ino ino) const;
  /// A counter that grows with each change that makes cached attributes of any file stale.
  static std::uint64_t changes() { return changes_; }
  /// Calls visit for each inode of a range that the kernel may have cached, with the part that it may have
  /// cached. Marks the visited tensors as not cached.
  using VisitCached = std::function<void(Ino ino, Stale::What what)>;
  void visit_cached(const Stale& stale, const VisitCached& visit) const;
  /// Returns the directory of an inode that the kernel has looked up, else 0. Also 0 for files whose
  /// attributes the kernel does not cache.
  [[nodiscard]] Ino directory_looked_up(Ino ino) const;
  /// Views::slice_to_forget().
  std::optional<std::string> slice_to_forget() { return views_.slice_to_forget(); }
  [[nodiscard]] Result<struct stat> attributes(Ino ino) const;
  /// Calls visit for `.`, `..` and the children until visit returns false. `position` is 0 in the first call,
  /// and the position where the previous call ended in later calls. visit gets the position of the next
  /// entry.
  Result<void> read_directory(Ino directory, std::uint64_t position,
                              const Directory::VisitEntry& visit) const;
  /// S_IFDIR or S_IFREG.
  [[nodiscard]] mode_t file_type(Ino ino) const;
  /// Returns the size of the archives and the free space in them.
  [[nodiscard]] struct statvfs statistics() const;
  /// Returns the free space of the store that new tensors are written to. Returns nothing if the mount is
  /// read-only or if the store does not report its free space. May wait for the store.
  [[nodiscard]] std::optional<FreeSpace> free_space() const;

  // Transactions over many tensors (transaction_directory.h), and directories of layout=tree. EPERM in all
  // other directories.
  /// @param maker  if other users may enter the mount, only the maker may commit or remove the transaction,
  ///               or see its staged content.
  /// @param mode   the permissions of a directory in pretrained/.
  Result<struct stat> make_directory(Ino parent, std::string_view name, Maker maker = {}, mode_t mode = 0777);
  Result<void> remove_directory(Ino parent, std::string_view name);
  /// Also deletes a tensor. Programs that have the tensor open can still read it.
  Result<Outdated> remove_file(Ino parent, std::string_view name);
  /// A move to `committed` is the commit: all of the transaction's tensors change, or none. In the tree, a
  /// tensor gets another name. It replaces a tensor of the new name, unless flags (of renameat2(2)) forbid
  /// that.
  Result<Outdated> rename(Ino parent, std::string_view name, Ino new_parent, std::string_view new_name,
                          unsigned flags = 0);
  /// setxattr(2) and removexattr(2) for dtype and shape of a tensor, and `metadata.KEY` of the root. EPERM
  /// for other attributes.
  /// @param value  nothing: removes the attribute.
  /// @param flags  of setxattr(2).
  Result<Outdated> set_extended_attribute(Ino ino, std::string_view name,
                                          const std::optional<std::string>& value, int flags = 0);

  /// Makes a file beside the tensors, or in npy/, and opens it. At its close the file becomes a tensor. Opens
  /// the file if it exists.
  /// @param mode   the permissions of a file in pretrained/, after the umask of the program is applied.
  /// @param maker  the owner of a file in pretrained/.
  Result<CreatedFile> create(Ino parent, std::string_view name, int flags, pid_t opener, mode_t mode = 0666,
                             const Maker& maker = {});
  /// True if the kernel may not cache the listing of this directory, because other mounts add and remove
  /// files: the model has scratch files, or had some when the previous listing began.
  [[nodiscard]] bool lists_scratch(Ino directory) const;
  /// True if a look-up of the name, or an opening of the directory, may read the scratch directory.
  [[nodiscard]] bool reads_scratch(Ino directory, std::string_view name = {}) const;
  /// True if a page of the directory may show scratch files.
  [[nodiscard]] bool may_list_scratch(Ino directory) const {
    return was_scratch_listed_ && node_of(directory).kind == Node::Kind::Directory;
  }
  /// True for a file that is not a tensor yet. The kernel may not cache the name and attributes of such a
  /// file.
  [[nodiscard]] bool is_draft(Ino ino) const { return node_of(ino).kind == Node::Kind::Draft; }
  /// True for a file of the source directory, in `.safetensors/pretrained`. These files have no OpenFile.
  /// Requests on their bytes and attributes go to served_files().
  [[nodiscard]] bool is_source_file(Ino ino) const { return node_of(ino).is_source_file(); }
  [[nodiscard]] ServedFiles& served_files() { return served_files_; }
  /// PretrainedDirectory::is_changed().
  [[nodiscard]] bool is_source_changed(Ino ino) const {
    return pretrained_.is_changed(InodeSpace::local(ino));
  }

  // Extended attributes: a tensor's name, dtype, shape and place, and the model's metadata. ENODATA if no
  // attribute has this name. E2BIG if a value is longer than the kernel passes on (kMostAttributeBytes); then
  // the value is not made.
  [[nodiscard]] Result<std::string> extended_attribute(Ino ino, std::string_view name) const;
  /// Leaves out values that the kernel can't pass on: values over 64 KiB, and all names after the list has
  /// reached its limit. The kernel checks no permission for a list of attributes, so the keys of the metadata
  /// are listed only to a caller who may read them.
  [[nodiscard]] Result<std::vector<std::string>> list_extended_attributes(Ino ino,
                                                                          const Maker& caller = {}) const;

  // The flags of the calls below are flags of open(2). O_TRUNC is ignored: the kernel sends a separate
  // resize.
  /// Returns null for a read-only descriptor, because it has no state. The model owns the OpenFile until
  /// release().
  Result<OpenFile*> open(Ino ino, int flags, pid_t opener);
  /// Returns fewer bytes than the caller asks for only at the end of the file.
  [[nodiscard]] Result<Bytes> read(Ino ino, std::uint64_t offset, std::size_t size_bytes) const;
  /// Returns the descriptor of another file that holds the same bytes at the same offsets, and always will.
  /// Only `archive.safetensors` has one, and only if all of these hold: the model is a single archive, its
  /// data begin at a page, and this mount cannot write to it.
  [[nodiscard]] std::optional<int> same_file(Ino ino) const;
  /// Stages the bytes. A synchronous descriptor also commits, as soon as the content is whole. EFBIG past the
  /// end.
  /// @param accept  called before the bytes are staged, if only a failing disk can still refuse them. After
  ///                accept the writer may continue, and its next call returns a later failure, at the latest
  ///                its close. After accept, `file` may be freed before write() returns.
  Result<Stale> write(OpenFile& file, std::span<const std::byte> from, std::uint64_t offset, Caller caller,
                      const std::function<void()>& accept = {});
  /// Stages bytes that the kernel writes back from a shared mapping. The kernel may use any open descriptor
  /// for such a write.
  Result<void> write_back(Ino ino, std::span<const std::byte> from, std::uint64_t offset);
  /// Checks that size and times of the file may be set. EROFS on a read-only mount, EPERM for a view that no
  /// program can write to.
  [[nodiscard]] Result<void> check_settable(Ino ino) const;
  Result<void> resize(OpenFile& file, std::uint64_t size_bytes, Caller caller);
  /// Handles a resize that names no descriptor. A resize to 0 by a thread that has just opened the tensor is
  /// the O_TRUNC of that open. Any other resize is truncate(2) by name. A tensor's size is fixed, so only the
  /// present size is accepted.
  Result<void> resize_by_name(Ino ino, std::uint64_t size_bytes, pid_t caller);
  /// utimensat(2). The time is kept in memory only. A commit of earlier bytes keeps this time. In a
  /// transaction the time shows after the commit.
  void set_mtime(Ino ino, struct timespec mtime);
  /// Handles a close of one copy of a descriptor, as close_decision.h says.
  Result<Stale> flush(OpenFile& file, Owner owner, pid_t closer);
  Result<Stale> sync(OpenFile& file);
  /// Call when the descriptor's last copy and its mappings are closed. Acts as close_decision.h says. Errors
  /// are logged.
  Stale release(OpenFile* file);

  /// Calls ForeignChanges::check_for_change() without is_edited. Also follows edits of other processes
  /// (StructureEdits::follow()).
  ForeignChanges::Change check_for_change(std::uint32_t shard = 0);
  /// ForeignChanges::check_permissions() of all shards.
  bool check_permissions();
  /// check_for_change() for the model's index.
  ForeignChanges::Change check_index();
  /// Makes every later look-up of files that show tensors fail with EIO and this message. Open files can
  /// still be read, except tensors of a delta's base whose bytes another program has changed: these give EIO.
  void refuse(std::string why);
  [[nodiscard]] bool is_refused() const { return is_refused_; }
  /// Notes that another MountedModel shows the model now.
  void note_replaced() { is_replaced_ = true; }
  [[nodiscard]] bool is_replaced() const { return is_replaced_; }
  /// Visits the entries that the kernel may have cached, except the entries in the root. The entries in a
  /// directory come before the entry of the directory.
  void visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const;
  /// The newest generation of all tensors.
  [[nodiscard]] std::uint64_t newest_generation() const { return states_.newest_generation(); }
  /// Call some time after commits, when no caller waits. Settles the journal that is kept for the next
  /// commit, closes discarded files, and frees the space of deleted tensors that no program has open any
  /// more.
  void tidy();
  /// Call when no commit has run for a while. Moves tensors into the gaps that edits have left.
  void close_gaps() { structure_.close_gaps(false); }
  /// Returns true if an edit has replaced the index since the last call. Then a watch on the file must be set
  /// again.
  [[nodiscard]] bool take_new_index() { return structure_.take_new_index(); }
  /// Drops and logs staged content, and removes the journal that was kept. Call at the end of the mount, when
  /// no other call is running.
  void end();

  /// The views and files of transactions that show stale tensors. The kernel must forget them too.
  [[nodiscard]] std::vector<Stale> stale_views(const Stale& tensors_stale);
  /// `tell` runs for caches that became stale outside of a call that could return them, views first. Set
  /// before the first call.
  void tell_stale_to(const std::function<void(Stale)>& tell) {
    tell_stale_ = [this, tell](Stale stale) {
      for (const Stale& view : stale_views(stale)) tell(view);
      tell(stale);
    };
  }
  /// `tell` gets the caches that a close made stale by committing an edit. Set before the first call.
  void tell_outdated_to(std::function<void(const Outdated&)> tell) { tell_outdated_ = std::move(tell); }
  /// `show` reopens the model after a save has replaced the archive (mounted_model_checkpoints.cc), and
  /// returns what the kernel must forget. Without `show`, checkpoints are saved in place. Set before the
  /// first call.
  void show_replacement_by(std::function<Outdated()> show) { show_replacement_ = std::move(show); }
  /// `note` runs after each commit, so that its owner calls tidy(). Set before the first call.
  void tell_commits_to(std::function<void()> note) { wake_janitor_ = std::move(note); }
  /// The counts of requests, for `.safetensors/stats.json`.
  [[nodiscard]] const std::shared_ptr<Activity>& activity() const { return activity_; }

  /// While a caller holds the pin, the parts of the model that it has read stay valid.
  [[nodiscard]] Snapshot::Pin pin() const { return snapshots_.pin(); }
  /// Names a file for the log: "MODEL: PATH", with the path from the model's root. The name of the root is
  /// MODEL alone.
  /// @param name  a name in the directory `ino`. Empty: names the file `ino` itself.
  [[nodiscard]] std::string label_of(Ino ino, std::string_view name) const;
  [[nodiscard]] bool is_read_only() const { return options_.is_read_only; }
  /// True if reads fail because another program has written to the model (fails_on_change).
  [[nodiscard]] bool is_changed() const { return reader_.is_any_changed(); }
  /// True if the shard's path still names the file that is open, as far as its store shows.
  [[nodiscard]] bool is_at_path(std::uint32_t shard) const;
  [[nodiscard]] const Model& model() const { return *snapshots_->model; }
  /// The first shard that can be used. For a single archive: that archive.
  [[nodiscard]] const ArchiveReader& archive() const { return model().front(); }

 private:
  // These classes change this state.
  friend class ForeignChanges;
  friend class ShardWriter;
  friend class StructureEdits;

  static constexpr std::string_view kMetadataPrefix = "metadata.";  // of an attribute's name

  // mounted_model.cc:
  /// Returns the directory class that has this number of the model.
  [[nodiscard]] Directory& directory_of(Ino ino) const;
  /// The inodes of the model, from first to last, as numbers of the mount.
  [[nodiscard]] Stale stale(Ino first, Ino last, Stale::What what) const {
    return {space_.in_mount(first), space_.in_mount(last), what};
  }
  [[nodiscard]] Stale stale(Ino ino, Stale::What what) const { return stale(ino, ino, what); }
  /// The first and the last id of a shard's tensors; nothing if it has none.
  [[nodiscard]] std::optional<std::pair<TensorId, TensorId>> ids_of_shard(std::uint32_t shard) const;
  /// All tensors of a shard.
  [[nodiscard]] Stale stale_shard(std::uint32_t shard, Stale::What what) const;
  /// The pending file that the page cache of this file shows, if any. Only for tensors.
  [[nodiscard]] std::shared_ptr<PendingFile> shared_content(const Node& node) const;
  /// The name of the tensor that has this file in a directory of the tree. EILSEQ if no tensor can have this
  /// file name.
  [[nodiscard]] Result<std::string> name_in(Ino directory, std::string_view file_name) const;
  /// EILSEQ: no tensor's file can have this name.
  [[nodiscard]] tl::unexpected<Error> no_tensor_named(std::string_view file_name) const;
  /// Adds a descriptor for writing. @param flags  of open(2).
  OpenFile* add_open(Ino ino, int flags, pid_t opener, FileKind kind, std::shared_ptr<PendingFile> content);
  /// "ARCHIVE: tensor "NAME"", for messages.
  [[nodiscard]] std::string label_of(const PendingFile& content) const;
  /// The path of a file from the model's root. Empty for the root.
  [[nodiscard]] std::string path_of(Ino ino) const;
  /// The path of a file or directory of the tree. Empty if the file or directory does not exist any more.
  [[nodiscard]] std::string path_in_tree(Ino ino) const;
  /// The path of a node below `.safetensors`, relative to `.safetensors`.
  [[nodiscard]] std::string path_below_hidden(const Node& node) const;
  [[nodiscard]] std::string path_in_transactions(const Node& node) const;
  /// Returns the lock that keeps readers out of a tensor while the tensor changes.
  [[nodiscard]] TransactionGroup::LockOf lock_of() {
    return [this](TensorPlace place) -> ReaderWriterLock& { return reader_.lock_of(place); };
  }
  /// The archive that new tensors are written to.
  [[nodiscard]] Archive& archive_for_new() const;
  [[nodiscard]] TensorId give_id() const;
  /// Call before any tensor gets an id below this one.
  void grow(std::uint32_t end_of_ids) const;
  /// EROFS or ESTALE if this mount can't change a tensor.
  [[nodiscard]] Result<void> check_writable() const;
  /// EROFS, EPERM or ESTALE if this mount can't change the structure.
  [[nodiscard]] Result<void> check_editable() const;
  /// EACCES if other users may enter the mount, and the user of the request lacks this right to a directory
  /// or file. The kernel has checked the same right before it sent the request. But the directories that keep
  /// their numbers when an archive is replaced may have had the old archive's mode at that time. Files of the
  /// source directory are not checked, because the kernel does not cache their attributes.
  /// @param right  S_IROTH or S_IWOTH.
  [[nodiscard]] Result<void> check_caller(const Node& node, mode_t right) const;
  /// EACCES if other users may enter the mount, and the user of the request may not write every shard.
  [[nodiscard]] Result<void> check_caller_writes_all() const;
  /// The rights that all shards give.
  [[nodiscard]] Permissions rights_to_all() const;
  static tl::unexpected<Error> refuse_change(int errno_value, std::string why) {
    return fail(ErrorCode::InvalidArgument, errno_value, std::move(why));
  }
  /// Call after each commit.
  void note_commit() {
    activity_->note_commit();
    wake_janitor_();
  }

  // mounted_model_lookup.cc:
  /// Returns status_of(), but EIO for a file that shows a tensor of a refused model.
  [[nodiscard]] Result<Ino> find(const Node& from, std::string_view name) const;
  [[nodiscard]] Result<struct stat> status_of_found(const Node& found) const;
  /// The tensor that a file shows, if look-ups of the file are counted for the tensor: the tensor's own file,
  /// a view with a fixed number, or a file of a transaction.
  [[nodiscard]] std::optional<TensorId> tensor_behind(Ino ino) const;

  // mounted_model_status.cc. These functions take only the mutexes of the last rank. Only calls for files in
  // pretrained/ wait for a disk.
  /// ENOENT for a file that was just removed.
  [[nodiscard]] Result<struct stat> status_of(const Node& node) const;
  /// A NumPy file of a transaction: its NumPy header, and the file whose bytes follow the header.
  struct ShownNpy {
    Ino plain = 0;                    // the file with the tensor's bytes
    struct stat status {};            // of that file
    std::optional<std::string> head;  // none while the tensor has no form: the file is empty
  };
  [[nodiscard]] Result<ShownNpy> shown_npy(const Node& node) const;
  /// Attributes that most files and directories have, with one link.
  /// @param type  of the file: S_IFREG or S_IFDIR.
  [[nodiscard]] struct stat filled_status(Ino ino, mode_t type, const Permissions& shown,
                                          std::uint64_t size_bytes) const;
  [[nodiscard]] struct stat status_of_directory(const Node& node) const;
  [[nodiscard]] Result<struct stat> status_of_tensor(const Node& node) const;
  [[nodiscard]] Result<struct stat> status_of_view(const Node& node) const;
  [[nodiscard]] Result<struct stat> status_of_served(const Node& node) const;
  [[nodiscard]] struct stat status_of_draft(const Node& node, const PendingFile& content) const;
  [[nodiscard]] Result<struct stat> status_of_staged_npy(const Node& node) const;

  // mounted_model_attributes.cc:
  [[nodiscard]] Result<std::string> attribute_of_root(std::string_view key) const;
  [[nodiscard]] Result<std::string> attribute_of_tensor(TensorId tensor, std::string_view key) const;
  /// @param ino  of the model.
  [[nodiscard]] Result<std::string> attribute_of_view(Ino ino, std::string_view key) const;
  [[nodiscard]] Result<std::string> attribute_of_staged(const Node& node, std::string_view key) const;
  /// A number that stays the same over a read only if no bytes of the tensor have changed during the read.
  [[nodiscard]] std::uint64_t generation_of(TensorId tensor) const;
  /// The path of a tensor's file from the mount's root. ENODATA if it was deleted.
  [[nodiscard]] Result<std::string> own_file(TensorId tensor) const;
  /// EACCES if some users may read one shard but not all.
  [[nodiscard]] Result<void> check_metadata_readable() const;
  [[nodiscard]] bool may_read_metadata(const Maker& caller) const;

  // mounted_model_read.cc:
  [[nodiscard]] Result<Bytes> read_pending(PendingFile& content, std::uint64_t offset,
                                           std::size_t size_bytes) const;
  [[nodiscard]] Result<Bytes> read_staged_npy(const Node& node, std::uint64_t offset,
                                              std::size_t size_bytes) const;

  // mounted_model_write.cc:
  /// Writes in parallel with writes to other ranges, if only a failing disk can refuse the bytes. Accepts the
  /// bytes first, and lets other writes run while it stages them.
  /// @return nothing if the write cannot run in parallel; then the call has had no effect.
  // Clang cannot follow the lock, because the lock is released during the write.
  std::optional<Result<void>> write_beside(PendingFile& content, std::span<const std::byte> from,
                                           std::uint64_t offset, Caller caller,
                                           const std::function<void()>& accept) NO_THREAD_SAFETY_ANALYSIS;
  /// Notes that bytes were refused. @return the error for their writer.
  tl::unexpected<Error> refuse_write(PendingFile& content, Error why) REQUIRES(content.mutex);
  Result<void> stage_write(PendingFile& content, std::span<const std::byte> from, std::uint64_t offset)
      REQUIRES(content.mutex);

  // mounted_model_close.cc. The caller holds the content's mutex:
  [[nodiscard]] CloseFacts facts_of_close(const OpenFile& file, Owner owner, pid_t closer) const;
  Result<Stale> commit_if_dirty(const OpenFile& file);
  /// Commits whole bytes, as their kind needs it.
  Result<Stale> commit(const OpenFile& file);
  [[nodiscard]] Error wrong_size(const PendingFile& content) const;
  /// The error for content whose writer was killed, or may have been killed.
  [[nodiscard]] Error killed(const PendingFile& content, pid_t closer, Ending ending) const
      REQUIRES(content.mutex);
  void abandon_pending();

  // mounted_model_commit.cc. The caller holds the content's mutex. Commits wait for the disk and for other
  // processes' locks:
  /// Commits a TensorPatch. @return what the kernel must forget.
  /// @param form  the form that the bytes are meant for, or null. ESTALE if the tensor has another form at
  ///              the commit.
  Result<Stale> commit_patch(const OpenFile& file, const TensorForm* form = nullptr);
  /// Commits new bytes for the whole tensor.
  /// @param fill  writes the bytes.
  Result<Stale> commit_in_place(TensorId tensor, const std::function<Result<void>(Staging&)>& fill,
                                const TensorForm* form = nullptr);
  /// Stages all bytes of a content for another place in the archive.
  Result<void> copy_content(PendingFile& content, Staging& to) const;
  /// Notes that a patch has just been committed.
  void note_patched(const PendingFile& content);
  /// ESTALE if another program has deleted the tensor, or has given it another dtype or shape.
  [[nodiscard]] Result<void> check_commit_target(const PendingFile& content, const TensorForm* form) const;
  /// Acts as commit_patch(), in the tensor's present place after an edit has moved the tensor.
  Result<Stale> commit_elsewhere(PendingFile& content, const TensorForm* form);
  /// Acts as commit_patch(), in the place that the bytes were staged for.
  Result<Stale> commit_stage(const OpenFile& file, const TensorForm* form);
  /// Acts as commit_patch() for a tensor of the base of a delta: the delta gets the tensor.
  Result<Stale> commit_copy(const OpenFile& file, const TensorForm* form);

  // mounted_model_tree.cc. Directories have inode numbers of the model:
  /// Renames a tensor, a directory, or a scratch file.
  /// @param flags        of renameat2(2).
  /// @param is_outdated  set if another edit has changed the names before this one: the caller retries.
  Result<Outdated> rename_in_tree(Ino parent, std::string_view name, Ino new_parent,
                                  std::string_view new_name, unsigned flags, bool& is_outdated);
  Result<Outdated> rename_scratch(const Drafts::Draft& draft, Ino new_parent, std::string_view new_name,
                                  unsigned flags, bool& is_outdated);
  /// Gives a tensor the name of the target, which is deleted. EBUSY: a program is writing the target.
  Result<void> replace_tensor(ModelEdit& edit, TensorId tensor, TensorId target);
  /// @param to  the entry that has the new name now.
  Result<Outdated> rename_directory(Ino directory, const Result<Ino>& to, Ino new_parent,
                                    std::string_view new_name, unsigned flags);
  Result<struct stat> make_tree_directory(Ino parent, std::string_view name);
  Result<void> remove_tree_directory(Ino parent, std::string_view name);
  /// Checks that layout=tree can have a new directory of this name. EILSEQ, EPERM or EEXIST.
  [[nodiscard]] Result<void> check_new_directory(Ino parent, std::string_view name) const;
  // @param flags  of setxattr(2).
  Result<Outdated> set_metadata(std::string_view key, const std::optional<std::string>& value, int flags);
  /// Sets `dtype` or `shape`.
  Result<Outdated> retype(TensorId tensor, std::string_view key, const std::string& value);
  /// Keeps the form of a tensor whose name is about to be removed (Drafts::note_vacated()).
  void note_vacated(TensorId tensor);

  // mounted_model_scratch.cc. Directories have inode numbers of the model:
  /// True if this mount shows scratch files.
  [[nodiscard]] bool shows_scratch() const { return !options_.is_read_only && options_.allows_edits; }
  /// Returns the draft of this name, of any kind.
  [[nodiscard]] std::optional<Drafts::Draft> find_draft(Ino directory, std::string_view name) const;
  /// Makes drafts of all scratch files, and drops the drafts whose files were removed.
  void load_scratch() const;
  /// True if a directory has scratch files.
  [[nodiscard]] bool has_scratch_in(Ino directory) const;
  /// Calls visit as Directory::list() does, for the scratch files of a directory that no tensor hides.
  /// @param position  at least kFirstScratchPosition, or the next position that visit got.
  void list_scratch(Ino directory, std::uint64_t position, const Directory::VisitEntry& visit) const;
  static constexpr std::uint64_t kFirstScratchPosition = std::uint64_t{1} << 50U;
  /// EEXIST if a scratch file has this name already. EDQUOT if the user who sent the request has too many
  /// scratch files (UserLimits).
  Result<Drafts::Draft> create_scratch(Ino directory, std::string_view name, mode_t mode);
  /// Renames the file in the scratch directory.
  /// @param replaced     the scratch file that has the new name.
  /// @param is_outdated  becomes true, with an error, if that file has become a tensor.
  Result<void> move_scratch(const Drafts::Draft& draft, Ino new_directory, std::string_view new_name,
                            const std::optional<Drafts::Draft>& replaced, bool& is_outdated);
  /// Keeps a dtype or a shape in the attributes of the scratch file, for other mounts and for the next mount.
  /// Logs a failure. Does nothing for a draft that is no scratch file.
  static void keep_attribute(const Drafts::Draft& draft, std::string_view key, const std::string& value);
  /// Removes a scratch file. Programs that have the file open keep its bytes.
  Result<void> remove_scratch(const Drafts::Draft& draft);
  /// Call when the bytes of a scratch file have become a tensor. The caller holds the content's mutex.
  /// @param ino  of the scratch file.
  void note_became_tensor(Ino ino, const PendingFile& content);
  /// Call when a file that has no name may have lost its last user.
  void let_go_of_draft(Ino ino) const;
  /// Renames files after a directory has moved.
  void follow_directories() const;
  /// Logs the present scratch files. Removes each one whose bytes became a tensor just before a crash.
  void begin_scratch();
  /// The names of the scratch files, for messages.
  [[nodiscard]] std::string scratch_names() const;
  [[nodiscard]] std::optional<std::string> find_scratch_name(Ino directory, std::string_view name) const;
  /// @param share  the share of the user who makes the file; none for a file that is found.
  std::optional<Drafts::Draft> add_scratch(Ino directory, std::string_view name, std::string file_name,
                                           UserCounts::Share share = {}) const;
  /// Removes the name of a draft whose file was removed.
  void drop_scratch(const Drafts::Draft& draft) const;
  /// True if the name still leads to the draft's file.
  [[nodiscard]] bool is_scratch_there(const Drafts::Draft& draft) const;
  [[nodiscard]] bool is_in_use(const Drafts::Draft& draft) const;
  /// True if a file in the scratch directory has the bytes of this tensor.
  /// @param most_bytes  returns false, without a comparison, for more bytes. Reduced by the compared bytes.
  [[nodiscard]] bool has_bytes_of(TensorId tensor, const std::string& file_name,
                                  std::uint64_t& most_bytes) const;

  // mounted_model_drafts.cc:
  /// Makes a file beside the tensors, or in npy/. EPERM in other directories.
  Result<CreatedFile> create_draft(const Node& directory, std::string_view name, int flags, pid_t opener,
                                   mode_t mode);
  /// Makes a file that is no tensor before its close, and opens it. EBUSY if a file has this name.
  Result<CreatedFile> make_draft(Drafts::Draft draft, int flags, pid_t opener);
  /// Opens a draft that has just been made.
  Result<CreatedFile> show_draft(Drafts::Draft draft, int flags, pid_t opener);
  /// Opens the NumPy file of a tensor for writing: the first open makes the draft.
  Result<OpenFile*> open_draft(Drafts::Draft draft, TensorId tensor, std::string name, int flags,
                               pid_t opener);
  /// Opens a view in npy/ for writing.
  Result<OpenFile*> open_npy(const Node& node, int flags, pid_t opener);
  /// Returns the tensor's file name for a new file in npy/. EINVAL if the name does not end in `.npy`.
  static Result<std::string_view> npy_stem(std::string_view name);
  /// Loads the bytes that a view shows before the first write to the view, unless the view was truncated.
  Result<void> load_base(PendingFile& content, Ino ino) REQUIRES(content.mutex);
  /// Writes the bytes that a view shows to `made`.
  Result<void> copy_view(NewTensor& made, Ino ino) const;
  /// Makes a tensor of a new file, or replaces the tensor of the file's name. The caller holds the mutex of
  /// the file's content.
  Result<Stale> commit_draft(const OpenFile& file);
  /// Gives a scratch file the name of a tensor, and replaces the tensor. ENODATA if the file has no form and
  /// the tensor has another size.
  /// @param check  runs in the edit. An error of it ends the edit.
  Result<Outdated> replace_by_draft(const Drafts::Draft& draft, TensorId tensor,
                                    const std::function<Result<void>()>& check);
  /// Gives a scratch file another name, which no tensor has.
  /// @param replaced, is_outdated  as in move_scratch().
  Result<Outdated> rename_draft(const Drafts::Draft& draft, Ino new_directory, std::string_view new_name,
                                const std::optional<Drafts::Draft>& replaced, bool& is_outdated);
  /// Sets `dtype` or `shape` of a scratch file. EINVAL if both are set, no program writes the file, and they
  /// don't fit its bytes. A file without bytes may get them later.
  Result<Outdated> set_draft_attribute(const Drafts::Draft& draft, std::string_view key,
                                       const std::string& value);
  /// Call before a close decides. A scratch file without a form gets the form of a tensor that had its
  /// name (Drafts::vacated()), if the form fits the size of the file.
  void adopt_form(PendingFile& content) const REQUIRES(content.mutex);
  /// Call when a descriptor of a file that is no tensor is closed.
  void end_draft(const OpenFile& file);
  /// Gives a form to the bytes that a program is about to write to a tensor. The tensor then gets another
  /// size, dtype or shape.
  /// @return nothing if no program has the tensor open for writing, or if a program has already written
  /// bytes.
  std::optional<Result<void>> set_pending_form(TensorId tensor, std::string_view key,
                                               const std::string& value);
  /// Acts as set_pending_form() for one content. @return false if bytes were written or the content was
  /// closed.
  Result<bool> form_open_content(PendingFile& content, const std::string& name, Dtype dtype,
                                 std::string_view key, const std::string& value) const;
  /// Gives a tensor the form that was set while its file was open, if no program has written to the file
  /// since. Call at the last release. A form that needs another number of bytes is logged and changes
  /// nothing.
  void apply_form(const PendingFile& content) REQUIRES(content.mutex);
  struct NamedForm {
    std::string name;
    NewTensor::Form form;
  };
  /// Makes a tensor of a new content, or replaces the tensor of the same name. The caller holds the content's
  /// mutex.
  /// @param decide  returns the name and the form. Runs when no other edit can run before this one.
  /// @param id      the id of the tensor.
  Result<Outdated> put_draft(PendingFile& content, const std::function<Result<NamedForm>()>& decide,
                             TensorId id);
  /// Makes a tensor of a scratch file that has a form, if no program is writing the file.
  Result<Outdated> become_tensor(const Drafts::Draft& draft) REQUIRES(draft.content->mutex);
  [[nodiscard]] bool is_being_written(const PendingFile& content) const;

  // mounted_model_checkpoints.cc:
  /// True if a file of this name in pretrained/ may become a checkpoint: a temporary file of safetensors,
  /// model.safetensors, and the shards and the index of a model. Files of other names, such as
  /// adapter_model.safetensors, belong in the source directory.
  static bool takes_checkpoint(std::string_view name);
  [[nodiscard]] std::unique_ptr<Checkpoint> make_checkpoint(bool waits_for_name, bool is_shard) const;
  /// Opens the view of the whole model for writing. EBUSY: another program is writing a checkpoint to it.
  Result<OpenFile*> open_checkpoint(const Node& node, int flags, pid_t opener);
  // A checkpoint changes every shard. A user who makes, opens, renames or removes a checkpoint must have the
  // right to write every shard.
  /// Makes a file in `.safetensors` or pretrained/ that a rename to the whole model commits. EDQUOT if the
  /// user has too many checkpoints (UserLimits).
  Result<CreatedFile> create_checkpoint(Ino directory, std::string_view name, int flags, pid_t opener);
  Result<Outdated> rename_checkpoint(Ino directory, std::string_view name, Ino new_directory,
                                     std::string_view new_name);
  /// The caller holds the content's mutex. @return the entries that the kernel must forget before the caller
  /// continues.
  Result<Outdated> commit_checkpoint(PendingFile& content);
  Result<void> commit_whole_checkpoint(Checkpoint& saved, Outdated& found);
  Result<void> commit_checkpoint_shards(PendingFile& content, Outdated& found);
  /// ESTALE if a tensor has changed since its bytes were compared.
  [[nodiscard]] Result<void> check_unchanged(const Checkpoint& saved) const;
  /// Fails if the archive must be changed in place, with the reason.
  [[nodiscard]] Result<void> check_rewriting(const Checkpoint& saved) const;
  /// Replaces the archive by the new file. @return false if the archive has to be changed in place.
  Result<bool> replace_by_checkpoint(Checkpoint& saved, Outdated& found);
  /// Changes bytes of tensors only.
  Result<void> patch_checkpoint(const Checkpoint& saved, const std::vector<std::uint32_t>& changed,
                                std::vector<Stale>& found);
  /// Changes the model to the content of a checkpoint's files in one edit, including the set of tensors and
  /// the metadata.
  Result<void> edit_to_checkpoint(const std::vector<const Checkpoint*>& files, std::vector<Stale>& found);

  // mounted_model_transactions.cc:
  /// Returns the errors of check_editable(), or EACCES if the maker of the transaction may not write every
  /// shard. In both cases edits of the structure can't be staged.
  [[nodiscard]] Result<void> check_staging(Ino transaction) const;
  Result<OpenFile*> open_staged(const Node& node, int flags, pid_t opener);
  Result<CreatedFile> create_staged(Ino transaction, std::string_view name, int flags, pid_t opener);
  Result<Outdated> rename_staged(Ino transaction, std::string_view name, std::string_view new_name,
                                 unsigned flags);
  Result<Outdated> set_staged_attribute(const Node& node, std::string_view key,
                                        const std::optional<std::string>& value, int flags);
  Result<void> set_staged_form(const Node& node, std::string_view key, const std::string& value);
  /// Renames a transaction. A move to `committed` commits it.
  /// @param flags  of renameat2(2): EINVAL with RENAME_EXCHANGE.
  Result<Outdated> rename_transaction(Ino from, std::string_view name, Ino to, std::string_view new_name,
                                      unsigned flags);
  /// Commits the edits of a transaction.
  /// @param outdated  gets the entries that the kernel must forget, unless the commit fails.
  Result<void> commit_edits(const TransactionEdit& staged, Outdated& outdated);
  // T/.safetensors/npy: works as `.safetensors/npy`, but a close stages the tensor in the transaction.
  Result<CreatedFile> create_staged_npy(Ino directory, std::string_view name, int flags, pid_t opener);
  Result<OpenFile*> open_staged_npy(const Node& node, int flags, pid_t opener);
  /// Stages the bytes that a program has written. The caller holds the content's mutex.
  Result<Stale> stage_npy(const OpenFile& file);
  /// Notes in the transaction that a file did not become a tensor, so that its commit fails.
  void stage_npy_failure(const OpenFile& file);
  /// EINVAL if a NumPy file would give a tensor of the model another shape, without -o reshape.
  [[nodiscard]] Result<void> check_npy_shape(const OpenFile& file, const NewTensor::Form& form) const;

  /// Grows with each change that makes cached attributes of any file stale.
  inline static std::atomic<std::uint64_t> changes_ = 0;

  // Look-ups and reads also change the mutable members. Each of these members has its own lock, or is atomic.
  Snapshots snapshots_;
  MountedModelOptions options_;
  InodeSpace space_;
  std::shared_ptr<Activity> activity_;
  mutable TensorTree tree_;
  mutable TensorStates states_;
  ShardPermissions permissions_;
  TensorReader reader_;
  mutable Views views_;
  mutable PretrainedDirectory pretrained_;
  mutable TransactionDirectory transactions_;
  mutable HiddenDirectory hidden_;
  Committers committers_;
  mutable ScratchDirectory scratch_;
  OpenFiles open_files_;
  mutable Drafts drafts_;

  // By id: true if the kernel's page cache may hold bytes of the tensor. Set before the bytes are read, under
  // no lock. Checked after a commit, which keeps readers out.
  mutable PerTensor<std::atomic<bool>> may_be_cached_;
  // By id: true if the kernel may know the tensor's attributes. Set before the attributes are read, and again
  // when the kernel has got them.
  mutable PerTensor<std::atomic<bool>> may_be_known_;
  mutable PerTensor<std::atomic<std::uint32_t>> lookups_;  // by id: look-ups that the kernel keeps
  mutable std::atomic<std::uint32_t> next_id_;
  std::atomic<bool> is_refused_ = false;
  std::atomic<bool> is_replaced_ = false;
  mutable Mutex refusal_mutex_;
  std::string why_refused_ GUARDED_BY(refusal_mutex_);

  UserCounts scratch_counts_{"scratch files", options_.user_limits.scratch_files};
  UserCounts directory_counts_{"directories", options_.user_limits.directories};
  UserCounts draft_counts_{"checkpoints and NumPy files that are not committed", options_.user_limits.drafts};
  mutable UserCounts draft_bytes_{"bytes in headers and indexes of such checkpoints",
                                  options_.user_limits.draft_bytes};
  mutable std::atomic<bool> was_scratch_listed_ = false;
  mutable std::atomic<bool> was_scratch_refused_ = false;  // and the log says so

  // Set before the first call:
  std::function<void(Stale)> tell_stale_ = [](const Stale&) {};
  std::function<void(const Outdated&)> tell_outdated_ = [](const Outdated&) {};
  std::function<void()> wake_janitor_ = [] {};
  /// Shows the archive that has replaced this model's archive, and returns the entries that the kernel must
  /// forget. Empty: no save may replace the archive.
  std::function<Outdated()> show_replacement_{};

  // These members use the members above.
  ForeignChanges foreign_{*this};
  StructureEdits structure_{*this};
  ServedFiles served_files_{pretrained_, options_, [this] {
                              // The delta on top is the last shard.
                              const auto count = static_cast<std::uint32_t>(model().shards().size());
                              return permissions_.of_shard(count - 1);
                            }};
};

/// Adds the free space of a store to the result of statistics().
void add_free_space(const FreeSpace& space, struct statvfs& st);

}  // namespace stfs
