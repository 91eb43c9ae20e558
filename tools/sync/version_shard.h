// Writes one shard of a version: a valid archive whose entries' sizes are known only when they are written.
//
// The header comes first in the file. Room for the largest header that the shard can need is left, and the
// rest of it is padded with spaces.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/format/header.h"
#include "core/format/metadata.h"
#include "core/storage/new_file.h"

namespace stfs::sync {

/// The most that an entry of that name takes in a header, with its checksum in the metadata, in bytes.
std::uint64_t most_header_bytes(std::string_view name);

/// Used by one thread at a time. A shard that is destroyed before it has its name leaves nothing.
class VersionShard {
 public:
  /// Makes the file `path`.tmp. A file of that name is replaced.
  /// @param header_bytes  the sum of most_header_bytes() of all entries that may come.
  /// @param storage  must outlive it.
  static Result<VersionShard> create(const std::filesystem::path& path, std::uint64_t header_bytes,
                                     mode_t mode, Storage& storage);

  /// Appends bytes of the next entry.
  Result<void> append(std::span<const std::byte> bytes);
  /// Makes an entry of the bytes that were appended since the last one.
  void end_entry(std::string_view name, std::string_view checksum);

  /// Takes back the bytes that were appended since the last entry.
  Result<void> drop_entry();

  [[nodiscard]] bool is_empty() const { return entries_.empty(); }
  /// The names of all entries.
  [[nodiscard]] const std::vector<TensorSpec>& entries() const { return entries_; }
  /// The bytes of all entries.
  [[nodiscard]] std::uint64_t data_bytes() const { return data_bytes_; }

  /// Writes the header and syncs the file: only its name is missing.
  Result<void> settle();
  /// Gives the settled file its name, in the directory of create(). Does not sync the directory.
  Result<void> name_as(const std::filesystem::path& path) { return file_.finish_unsynced(path); }

 private:
  VersionShard(std::filesystem::path path, NewFile file, std::uint64_t room_bytes)
      : path_(std::move(path)), file_(std::move(file)), room_bytes_(room_bytes) {}

  std::filesystem::path path_;
  NewFile file_;
  std::uint64_t room_bytes_;  // of the header, with its length
  std::vector<TensorSpec> entries_;
  Metadata checksums_;
  std::uint64_t data_bytes_ = 0;
  std::uint64_t entry_bytes_ = 0;  // of the entry that is being appended
};

}  // namespace stfs::sync
