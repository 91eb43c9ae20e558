// What stat(2) tells of each file and directory of a model's file system.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "core/base/error.h"
#include "fs/model/model_parts.h"
#include "fs/model/served_files.h"

namespace stfs {

/// Any thread may call. Takes only the mutexes of the last rank (filesystem.h), and the disk of the source
/// directory for pretrained/.
class FileStats {
 public:
  /// Must not outlive the parts.
  FileStats(ModelParts& parts, const ServedFiles& pretrained) : parts_(parts), pretrained_(pretrained) {}

  /// ENOENT for a file that has just gone.
  [[nodiscard]] Result<struct stat> of(const Node& node) const;

  /// A NumPy file of a transaction: what it shows before the bytes of its tensor. Nothing while these have no
  /// form: the file is empty.
  struct StagedNpy {
    Ino plain = 0;                    // the file with the tensor's bytes
    struct stat status {};            // of that file
    std::optional<std::string> head;  // the NumPy header
  };
  [[nodiscard]] Result<StagedNpy> staged_npy(const Node& node) const;

 private:
  /// What most files and directories have, with one link.
  /// @param type  of the file: S_IFREG or S_IFDIR.
  [[nodiscard]] struct stat filled(Ino ino, mode_t type, const Permissions& shown,
                                   std::uint64_t size_bytes) const;
  [[nodiscard]] struct stat of_directory(const Node& node) const;
  [[nodiscard]] Result<struct stat> of_tensor(const Node& node) const;
  [[nodiscard]] Result<struct stat> of_view(const Node& node) const;
  [[nodiscard]] Result<struct stat> of_pretrained(const Node& node) const;
  [[nodiscard]] struct stat of_draft(const Node& node, const PendingContent& content) const;
  [[nodiscard]] Result<struct stat> of_staged_npy(const Node& node) const;

  ModelParts& parts_;
  const ServedFiles& pretrained_;
};

}  // namespace stfs
