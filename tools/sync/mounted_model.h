// The tensors of a model as a mount shows them: which have changed since a generation, and the bytes of one
// version of each, while other programs write to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/name_hash.h"
#include "core/storage/file.h"
#include "tools/sync/checksum_format.h"

namespace stfs::sync {

/// Whether the path is the root of a model in a mount.
bool is_mounted_model(const std::filesystem::path& path);

/// One reading of a tensor. Used by one thread.
class MountedTensor {
 public:
  /// As ReadPiece (diff_encoding.h). A reading of the whole tensor begins with offset 0 and goes on in order;
  /// there may be several.
  Result<void> read(std::uint64_t offset, std::span<std::byte> to);
  /// Whether all bytes of all readings are of one version, which the tensor still has or had: the mount's own
  /// checksum of a version is theirs. EIO and others: the checksum could not be asked for.
  [[nodiscard]] Result<bool> is_whole() const;

 private:
  friend class MountedModel;
  MountedTensor(std::filesystem::path path, std::unique_ptr<File> file, std::uint64_t size_bytes)
      : path_(std::move(path)), file_(std::move(file)), size_bytes_(size_bytes) {}

  std::filesystem::path path_;
  std::unique_ptr<File> file_;
  std::uint64_t size_bytes_ = 0;
  std::unique_ptr<ChecksumStream> stream_{};  // of the reading that goes on
  std::uint64_t read_bytes_ = 0;              // by it
  std::string checksum_{};                    // of the readings that are done
  bool has_other_{};                          // they differ
};

/// What the mount's attributes said at one moment. Immutable: any number of threads may read it.
class MountedModel {
 public:
  /// Reads the mount's generation, then that of each tensor.
  /// @return EOPNOTSUPP: an older version serves the mount; the errors of reading it.
  static Result<MountedModel> look(const std::filesystem::path& root);

  /// All changes up to this one are visible to who reads tensors now. A change that comes later has a larger
  /// one.
  [[nodiscard]] std::uint64_t generation() const { return generation_; }
  /// Whether the tensor may have changed since that generation. Nothing: the mount has no such tensor.
  [[nodiscard]] std::optional<bool> may_have_changed(std::string_view name, std::uint64_t since) const;
  /// Opens a tensor. ESTALE: it has another size, or is gone.
  [[nodiscard]] Result<MountedTensor> open(std::string_view name, std::uint64_t size_bytes) const;

 private:
  struct Entry {
    std::filesystem::path path;
    std::uint64_t generation = 0;
  };
  std::uint64_t generation_ = 0;
  std::uint64_t first_generation_ = 0;   // the first that this mount of the model can have told
  NameMap<std::string, Entry> tensors_;  // by name
};

}  // namespace stfs::sync
