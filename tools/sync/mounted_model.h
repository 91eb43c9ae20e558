// Reads the tensors of a model through a mount. It finds the tensors that have changed since a generation,
// and reads the bytes of one version of each tensor while other programs write to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/name_hash.h"
#include "core/model/model.h"
#include "core/storage/file.h"

namespace stfs::sync {

/// Returns true if the path is the root of a model in a mount.
bool is_mounted_model(const std::filesystem::path& path);

/// The readings of one tensor. Used by one thread.
class MountedTensor {
 public:
  /// Reads like ReadPiece (version_format.h). A reading of the whole tensor begins with offset 0 and
  /// continues in order. There may be several readings.
  Result<void> read(std::uint64_t offset, std::span<std::byte> to);
  /// Returns true if all bytes of all readings are of one version that the tensor has or had: their checksum
  /// is the one that the mount gives for the version. EIO and others: the checksum could not be read.
  [[nodiscard]] Result<bool> is_whole() const;

 private:
  friend class MountedModel;
  MountedTensor(std::filesystem::path path, std::unique_ptr<File> file, std::uint64_t size_bytes)
      : path_(std::move(path)), file_(std::move(file)), size_bytes_(size_bytes) {}

  std::filesystem::path path_;
  std::unique_ptr<File> file_;
  std::uint64_t size_bytes_ = 0;
  std::unique_ptr<Checksum> stream_{};  // of the present reading
  std::uint64_t read_bytes_ = 0;        // by the present reading
  std::string checksum_{};              // of the finished readings
  bool has_other_{};                    // the finished readings differ
};

/// The values of the mount's attributes at one moment. Immutable: any number of threads may read it.
class MountedModel {
 public:
  /// Reads the mount's generation, then the generation of each tensor.
  /// @param archive  the model that the mount shows. Other names in the mount are ignored.
  /// @return EOPNOTSUPP: an older version of stfs serves the mount; the errors of reading the mount.
  static Result<MountedModel> look(const std::filesystem::path& root, const Model& archive);

  /// A reader that starts now sees all changes up to this generation. Later changes have a larger generation.
  [[nodiscard]] std::uint64_t generation() const { return generation_; }
  /// Returns true if the tensor may have changed after that generation. Nothing: the mount has no such
  /// tensor.
  [[nodiscard]] std::optional<bool> may_have_changed(std::string_view name, std::uint64_t since) const;
  /// Opens a tensor. ESTALE: the tensor has another size, or was removed.
  [[nodiscard]] Result<MountedTensor> open(std::string_view name, std::uint64_t size_bytes) const;

 private:
  struct Entry {
    std::filesystem::path path;
    std::uint64_t generation = 0;
  };
  std::uint64_t generation_ = 0;
  std::uint64_t first_generation_ = 0;   // the first generation that this mount of the model could have given
  NameMap<std::string, Entry> tensors_;  // by name
};

}  // namespace stfs::sync
