// Files and edits of the structure in transactions. fs/write/staged_changes.h has the rules, and
// fs/write/transaction_npy.cc those of NumPy files.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "fs/model/content_commits.h"
#include "fs/model/draft_files.h"
#include "fs/model/file_stats.h"
#include "fs/model/model_parts.h"
#include "fs/model/structure_edits.h"

namespace stfs {

/// Any thread may call.
class StagedFiles {
 public:
  /// Must not outlive them.
  StagedFiles(ModelParts& parts, StructureEdits& structure, ContentCommits& contents, DraftFiles& drafts,
              const FileStats& stats)
      : parts_(parts), structure_(structure), contents_(contents), drafts_(drafts), stats_(stats) {}

  /// Why its maker can't stage edits of the structure, if so: check_editable(), or EACCES if he may not write
  /// every shard.
  [[nodiscard]] Result<void> check(Ino transaction) const;
  Result<OpenFile*> open(const Node& node, int flags, pid_t opener);
  Result<CreatedFile> create(Ino transaction, std::string_view name, int flags, pid_t opener);
  Result<Outdated> rename(Ino transaction, std::string_view name, std::string_view new_name, unsigned flags);
  Result<Outdated> set_attribute(const Node& node, std::string_view key,
                                 const std::optional<std::string>& value, int flags);
  /// Commits the edits of a transaction.
  /// @param outdated  gets what the kernel must forget, unless it fails.
  Result<void> commit(const TransactionEdit& staged, Outdated& outdated);

  // T/.safetensors/npy: as in `.safetensors/npy`, but a close stages the tensor in the transaction.
  Result<CreatedFile> create_npy(Ino directory, std::string_view name, int flags, pid_t opener);
  Result<OpenFile*> open_npy(const Node& node, int flags, pid_t opener);
  /// Stages what a program has written. The caller holds the content's mutex.
  Result<Stale> stage_npy(const OpenFile& file);
  /// Notes in the transaction that a file did not become a tensor, so that its commit fails.
  void stage_npy_failure(const OpenFile& file);

 private:
  /// The name of the tensor that a new file in a transaction becomes. EILSEQ if no tensor can have it.
  static Result<std::string> new_name(std::string_view file_name);
  /// The file for bytes of new tensors of the transaction of an inode.
  [[nodiscard]] std::shared_ptr<StagingFile> new_bytes(Ino ino);
  /// EINVAL if a NumPy file would give a tensor of the model another shape, without -o reshape.
  [[nodiscard]] Result<void> check_shape(const OpenFile& file, const NewTensor::Form& form) const;
  Result<void> set_form(const Node& node, std::string_view key, const std::string& value);

  ModelParts& parts_;
  StructureEdits& structure_;
  ContentCommits& contents_;
  DraftFiles& drafts_;
  const FileStats& stats_;
};

}  // namespace stfs
