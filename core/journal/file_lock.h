// Locks between processes and hosts, on ranges of an archive.
//
// Open-file-description locks at 2^62 + offset, rounded out to whole blocks: no lock ever covers data
// for somebody with mandatory locks, and no two hosts write one page (DURABILITY.md). A patch holds the
// header's byte shared and its blocks exclusively; an edit of the structure holds the header's byte
// exclusively.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/storage/file.h"

namespace stfs {

class ArchiveLocks {
 public:
  ArchiveLocks() = default;
  ArchiveLocks(ArchiveLocks&& other) noexcept;
  ArchiveLocks& operator=(ArchiveLocks&& other) noexcept;
  ~ArchiveLocks() { release(); }

  /// Takes the header's byte shared and the ranges of the archive exclusively, in ascending order, waiting
  /// for others up to `patience`; then Busy (EBUSY), naming the holder where it can be found. ENOLCK where
  /// the file system has no locks: nothing may be written then unless the user said nolock. The file must
  /// outlive the locks. Locks of one File do not exclude each other.
  /// @param has_waited  how long the caller has waited already, for the message; nothing: the caller tries
  ///                    again, so the message need not name the holder.
  static Result<ArchiveLocks> for_patch(
      File& archive, const std::filesystem::path& path, std::vector<ByteRange> ranges,
      std::chrono::milliseconds patience,
      std::optional<std::chrono::milliseconds> has_waited = std::chrono::milliseconds(0));

  void release();

 private:
  File* file_ = nullptr;
  std::vector<ByteRange> held_;
};

}  // namespace stfs
