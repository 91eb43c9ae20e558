// What the parts of one model's file system share: the model, its trees, what is known of its tensors, what
// is staged for them, and whom to tell of changes.
//
//   file_stats.h       attributes of files and directories
//   attribute_reader.h extended attributes
//   file_reader.h      bytes of all files
//   served_files.h     files of the source directory, in `.safetensors/pretrained`
//   foreign_changes.h  what other programs change in the shards
//   shard_writer.h     takes the turns of shards for a commit
//   structure_edits.h  edits of the structure, and the models that follow
//   content_commits.h  commits of bytes that were staged for a tensor
//   checkpoint_files.h whole checkpoints that programs write
//   scratch_files.h    files without a form, in the tree and beside the archive
//   draft_files.h      files that become tensors
//   staged_files.h     files in transactions
//   tensor_names.h     renames, directories, forms and metadata
//   filesystem.h       the requests of the kernel, which call all of these
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/commit/transaction.h"
#include "core/model/model.h"
#include "core/model/scratch_directory.h"
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
#include "fs/write/committers.h"
#include "fs/write/drafts.h"
#include "fs/write/open_files.h"
#include "fs/write/transaction_directory.h"

namespace stfs {

struct FilesystemOptions {
  Layout layout = Layout::Flat;
  bool is_read_only = false;
  bool allows_edits = true;  // tensors may be made, deleted, renamed and retyped
  /// -o compact=on: tensors move into the gaps that edits have left, where that is cheap: while no commit
  /// comes, and at the end.
  bool closes_gaps = false;
  bool reshapes = false;  // a NumPy file of another shape replaces a tensor
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
  UserLimits user_limits{};
  std::uint64_t least_generation = 0;  // no tensor begins with a lower generation
};

/// A file that a program has just made and opened.
struct CreatedFile {
  struct stat status {};
  OpenFile* file = nullptr;
};

/// Any thread may call. filesystem.h has the order of the locks.
struct ModelParts {
  ModelParts(std::unique_ptr<Model> its_model, const FilesystemOptions& its_options);
  ModelParts(const ModelParts&) = delete;
  ModelParts& operator=(const ModelParts&) = delete;
  ~ModelParts() = default;

  /// What an inode number means. Nothing else decodes numbers.
  /// @param ino  of the mount, or of the model.
  [[nodiscard]] Node resolve(Ino ino);
  /// The tree that has a number of the model.
  [[nodiscard]] Directory& directory_of(Ino ino);
  /// The inodes of the model, from first to last, as numbers of the mount.
  [[nodiscard]] Stale stale(Ino first, Ino last, Stale::What what) const {
    return {space.in_mount(first), space.in_mount(last), what};
  }
  [[nodiscard]] Stale stale(Ino ino, Stale::What what) const { return stale(ino, ino, what); }
  /// The first and the last id of a shard's tensors; nothing if it has none.
  [[nodiscard]] std::optional<std::pair<TensorId, TensorId>> ids_of_shard(std::uint32_t shard) const;
  /// All tensors of a shard.
  [[nodiscard]] Stale stale_shard(std::uint32_t shard, Stale::What what) const;
  /// The pending content that the page cache of this file shows, if any. Only for tensors.
  [[nodiscard]] std::shared_ptr<PendingContent> shared_content(const Node& node) const;
  /// The views and files of transactions that show stale tensors. The kernel must forget them too.
  [[nodiscard]] std::vector<Stale> stale_views(const Stale& tensors_stale);
  /// The name of the tensor that a file in a directory of the tree has. EILSEQ if no tensor can have it.
  [[nodiscard]] Result<std::string> name_in(Ino directory, std::string_view file_name) const;
  /// EILSEQ: no tensor's file can have this name.
  [[nodiscard]] tl::unexpected<Error> no_tensor_named(std::string_view file_name) const;
  /// Adds a descriptor for writing. @param flags  of open(2).
  OpenFile* add_open(Ino ino, int flags, pid_t opener, FileKind kind,
                     std::shared_ptr<PendingContent> content);
  /// "ARCHIVE: tensor "NAME"", for messages.
  [[nodiscard]] std::string label_of(const PendingContent& content) const;

  /// What keeps readers out of a tensor while it changes.
  [[nodiscard]] TransactionGroup::LockOf lock_of() {
    return [this](TensorPlace place) -> ReaderWriterLock& { return reader.lock_of(place); };
  }
  /// New tensors go to it.
  [[nodiscard]] Archive& archive_for_new() const;
  [[nodiscard]] TensorId give_id();
  /// Call before there are tensors with ids up to this one.
  void grow(std::uint32_t end_of_ids);
  /// EROFS, ESTALE if this mount can't change a tensor.
  [[nodiscard]] Result<void> check_writable() const;
  /// EROFS, EPERM, ESTALE if this mount can't change the structure.
  [[nodiscard]] Result<void> check_editable() const;

  /// Grows with each change that makes cached attributes of any file stale.
  inline static std::atomic<std::uint64_t> changes = 0;

  Versioned<Model> model;
  Epochs epochs;
  FilesystemOptions options;
  InodeSpace space;
  std::shared_ptr<Activity> activity;
  TensorTree tree;
  TensorStates states;
  ShardPermissions permissions;
  TensorReader reader;
  Views views;
  PretrainedDirectory pretrained;
  TransactionDirectory transactions;
  HiddenDirectory hidden;
  Committers committers;
  ScratchDirectory scratch;  // scratch_files.h
  OpenFiles open_files;
  Drafts drafts;

  // By id: the kernel's page cache may hold bytes of it. Set before the bytes are read, under no lock.
  // Checked after a commit, which keeps readers out.
  PerTensor<std::atomic<bool>> may_be_cached;
  // The same for attributes. Set before the attributes are read, and again when the kernel has them.
  PerTensor<std::atomic<bool>> may_be_known;
  PerTensor<std::atomic<std::uint32_t>> lookups;  // by id: of its files that the kernel knows
  std::atomic<std::uint32_t> next_id;
  std::atomic<bool> is_refused = false;  // Filesystem::refuse()

  // Set before the first call:
  std::function<void(Stale)> forget = [](const Stale&) {};
  std::function<void(const Outdated&)> tell_outdated = [](const Outdated&) {};
  std::function<void()> wake_janitor = [] {};
  /// Shows the archive by which this file system has replaced its own. @return what the kernel must forget.
  /// Empty: nobody can, and so nothing may replace it.
  std::function<Outdated()> show_replacement{};
  std::function<void()> note_commit = [this] { activity->note_commit(); };
};

}  // namespace stfs
