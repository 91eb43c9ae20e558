// Files that programs write a whole checkpoint to: `.safetensors/archive.safetensors`, and those that a
// rename makes it. A commit changes only what differs, in one transaction. fs/write/checkpoint.h compares it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "fs/model/file_stats.h"
#include "fs/model/model_parts.h"
#include "fs/model/shard_turns.h"
#include "fs/model/structure_edits.h"

namespace stfs {

/// Any thread may call.
class CheckpointFiles {
 public:
  /// Must not outlive them.
  CheckpointFiles(ModelParts& parts, ShardTurns& turns, StructureEdits& structure, const FileStats& stats)
      : parts_(parts), turns_(turns), structure_(structure), stats_(stats) {}

  /// Whether a file of that name may become a checkpoint: the temporary files of safetensors, and archives.
  static bool takes(std::string_view name);
  /// Opens the view of the whole model for writing. EBUSY: another program is writing a checkpoint to it.
  Result<OpenFile*> open(const Node& node, int flags, pid_t opener);
  /// Makes a file in `.safetensors` or pretrained/ that a rename to the whole model commits.
  Result<CreatedFile> create(Ino directory, std::string_view name, int flags, pid_t opener);
  Result<Outdated> rename(Ino directory, std::string_view name, Ino new_directory, std::string_view new_name);
  /// The caller holds the content's mutex. @return what the kernel must forget before the caller goes on.
  Result<std::vector<Stale>> commit(PendingContent& content);

 private:
  /// ESTALE if a tensor has changed since its bytes were compared.
  [[nodiscard]] Result<void> check_unchanged(const Checkpoint& saved) const;
  /// Changes bytes of tensors only.
  Result<void> patch(const Checkpoint& saved, const std::vector<std::uint32_t>& changed,
                     std::vector<Stale>& found);
  /// Also changes which tensors there are, or metadata.
  Result<void> edit(const Checkpoint& saved, const std::vector<std::uint32_t>& changed,
                    std::vector<Stale>& found);

  ModelParts& parts_;
  ShardTurns& turns_;
  StructureEdits& structure_;
  const FileStats& stats_;
};

}  // namespace stfs
