// Files that programs write a whole checkpoint to: `.safetensors/archive.safetensors`, and those that a
// rename makes it. A commit changes only what differs, in one transaction. fs/write/checkpoint.h compares it.
//
// Where most bytes differ, fs/write/checkpoint.h rewrites the archive instead, and the commit replaces the
// archive by the new file (replace()). The mount then shows the new archive as a new edition, as it does when
// another program has replaced it, but before the close or the rename returns
// (MountRoot::show_replacement()):
//
//   open files of the old edition    go on reading the old archive; a write to them fails with ESTALE
//   whole views, generations         are those of the new edition; generations go on growing
//   scratch files                    lie beside the archive: the new edition lists them
//   transactions, open tensors       none: while there is one, a checkpoint is saved in place. If one begins
//                                    after the change to rewriting, the commit is an edit in place
//   another checkpoint on its way    its name goes with the old edition: its rename fails
//   working directories              the root and `.safetensors` of a mount of one model stay (inode_space.h)
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "fs/model/file_stats.h"
#include "fs/model/foreign_changes.h"
#include "fs/model/model_parts.h"
#include "fs/model/structure_edits.h"

namespace stfs {

/// Any thread may call.
class CheckpointFiles {
 public:
  /// Must not outlive them.
  CheckpointFiles(ModelParts& parts, ForeignChanges& foreign, StructureEdits& structure,
                  const FileStats& stats)
      : parts_(parts), foreign_(foreign), structure_(structure), stats_(stats) {}

  /// Whether a file of that name in pretrained/ may become a checkpoint: the temporary files of safetensors,
  /// model.safetensors, and the shards and the index of a model. Others are files of the source directory:
  /// adapter_model.safetensors, say.
  static bool takes(std::string_view name);
  /// Opens the view of the whole model for writing. EBUSY: another program is writing a checkpoint to it.
  Result<OpenFile*> open(const Node& node, int flags, pid_t opener);
  /// Makes a file in `.safetensors` or pretrained/ that a rename to the whole model commits.
  Result<CreatedFile> create(Ino directory, std::string_view name, int flags, pid_t opener);
  Result<Outdated> rename(Ino directory, std::string_view name, Ino new_directory, std::string_view new_name);
  /// The caller holds the content's mutex. @return what the kernel must forget before the caller goes on.
  Result<Outdated> commit(PendingContent& content);

 private:
  /// ESTALE if a tensor has changed since its bytes were compared.
  [[nodiscard]] Result<void> check_unchanged(const Checkpoint& saved) const;
  /// Fails if the archive must be changed in place, with the reason.
  [[nodiscard]] Result<void> check_rewriting(const Checkpoint& saved) const;
  [[nodiscard]] std::unique_ptr<Checkpoint> make(bool waits_for_name, bool is_shard) const;
  /// Commits one checkpoint.
  Result<void> commit_whole(Checkpoint& saved, Outdated& found);
  Result<void> commit_shards(PendingContent& content, Outdated& found);
  /// Replaces the archive by the new file. @return false: it has to be changed in place.
  Result<bool> replace(Checkpoint& saved, Outdated& found);
  /// Changes bytes of tensors only.
  Result<void> patch(const Checkpoint& saved, const std::vector<std::uint32_t>& changed,
                     std::vector<Stale>& found);
  /// Also changes which tensors there are, or metadata.
  Result<void> edit(const Checkpoint& saved, std::vector<Stale>& found);

  ModelParts& parts_;
  ForeignChanges& foreign_;
  StructureEdits& structure_;
  const FileStats& stats_;
};

}  // namespace stfs
