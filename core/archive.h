// One `.safetensors` file, open, mapped, parsed and indexed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>

#include "core/error.h"
#include "core/file.h"
#include "core/header.h"
#include "core/mapped_region.h"
#include "core/tensor_index.h"

namespace stfs {

/// Any number of threads may read. Writing goes through Transaction, which alone calls file() to
/// write and then adopt_identity().
class Archive {
 public:
  /// Opens, checks every rule of the format and maps the data. ReadWrite fails with EACCES or EROFS
  /// where the file can't be written; the caller decides whether to try ReadOnly then.
  static Result<std::unique_ptr<Archive>> open(const std::filesystem::path& path, Access access,
                                               Storage& storage = system_storage());

  /// Absolute, as given otherwise: links are not resolved, so that a replacement is seen.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] Access access() const { return access_; }
  [[nodiscard]] const TensorIndex& tensors() const { return header_.tensors; }
  [[nodiscard]] const Metadata& metadata() const { return header_.metadata; }
  /// Size of the header's JSON, its padding included, without the 8 bytes before it.
  [[nodiscard]] std::uint64_t header_size_bytes() const { return header_size_bytes_; }
  /// Absolute offset in the file of the first byte of data.
  [[nodiscard]] std::uint64_t data_offset() const { return kHeaderLengthBytes + header_size_bytes_; }
  /// Absolute range in the file of a range of the data section.
  [[nodiscard]] ByteRange file_range(ByteRange data) const {
    return {data_offset() + data.offset, data.size_bytes};
  }
  /// Size, owner and mode of the file as they were when it was opened.
  [[nodiscard]] const FileStatus& opened_status() const { return status_; }

  /// The bytes of an absolute range, in memory and safe to touch now. EIO with code ArchiveCut where
  /// the file has become too short for it. Holds no lock: who must not see a commit half done takes
  /// the tensor's lock first (fs/filesystem.h).
  [[nodiscard]] Result<std::span<const std::byte>> read(ByteRange file_range) const;

  /// What has become of the file since it was opened or since our own last commit.
  struct Change {
    bool is_touched = false;   // somebody else wrote into it or cut it
    bool is_broken = false;    // ... and the header is another one: no offset can be trusted any more
    bool is_replaced = false;  // another file lies at the path, or none: ours lives on until it is closed
  };
  [[nodiscard]] Result<Change> check_for_change() const;

  [[nodiscard]] File& file() { return *file_; }
  [[nodiscard]] Storage& storage() const { return *storage_; }
  /// Takes the file's present identity for the known one, after a commit of our own.
  Result<void> adopt_identity();
  /// The identity last known to be ours.
  [[nodiscard]] FileIdentity identity() const;

 private:
  Archive() = default;

  std::filesystem::path path_;
  Access access_ = Access::ReadOnly;
  Storage* storage_ = nullptr;
  std::unique_ptr<File> file_;
  FileStatus status_;
  MappedRegion map_;
  Header header_;
  std::uint64_t header_size_bytes_ = 0;
  std::uint64_t header_hash_ = 0;
  mutable std::mutex identity_mutex_;  // guards identity_; innermost
  FileIdentity identity_;
};

}  // namespace stfs
