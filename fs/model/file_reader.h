// The bytes of all files of a model's file system.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/base/error.h"
#include "fs/model/file_stats.h"
#include "fs/model/model_parts.h"
#include "fs/tree/bytes.h"

namespace stfs {

/// Any thread may call. Takes the content's mutex for reading, then the tensor's lock: both wait only for
/// copies in memory.
class FileReader {
 public:
  /// Must not outlive them.
  FileReader(ModelParts& parts, const FileStats& stats, const ServedFiles& pretrained)
      : parts_(parts), stats_(stats), pretrained_(pretrained) {}

  /// Returns fewer bytes than asked for only at the end of the file.
  [[nodiscard]] Result<Bytes> read(Ino ino, std::uint64_t offset, std::size_t size_bytes) const;
  /// Returns the descriptor of another file that holds the same bytes at the same offsets, and always will.
  /// Only `archive.safetensors` has one, and only if all of these hold: the model is a single archive, its
  /// data begin at a page, and this mount cannot write to it.
  [[nodiscard]] std::optional<int> same_file(Ino ino) const;

 private:
  [[nodiscard]] Result<Bytes> read_pending(PendingContent& content, std::uint64_t offset,
                                           std::size_t size_bytes) const;
  [[nodiscard]] Result<Bytes> read_staged_npy(const Node& node, std::uint64_t offset,
                                              std::size_t size_bytes) const;

  ModelParts& parts_;
  const FileStats& stats_;
  const ServedFiles& pretrained_;
};

}  // namespace stfs
