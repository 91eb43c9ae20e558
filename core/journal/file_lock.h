// Locks between processes and hosts, on ranges of an archive.
//
// Open-file-description locks at 2^62 + offset, rounded out to whole blocks. They never cover the data
// itself, so mandatory locks elsewhere do no harm, and no two hosts write one page (core/DURABILITY.md). A
// patch holds the header's byte shared and its blocks exclusively. An edit of the structure holds the
// header's byte exclusively, so it has the archive to itself.
//
// Every reader holds the readers' byte shared while it has the archive open. An edit overwrites, cuts off and
// frees bytes of deleted or moved tensors only while it holds the readers' byte exclusively.
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

/// The readers' byte.
inline constexpr ByteRange kReadersByte = {(std::uint64_t{1} << 62U) - 1, 1};

/// Owns locks on one File and releases them at its end. Move-only. For one thread.
class ArchiveLocks {
 public:
  ArchiveLocks() = default;
  ArchiveLocks(ArchiveLocks&& other) noexcept;
  ArchiveLocks& operator=(ArchiveLocks&& other) noexcept;
  ~ArchiveLocks() { release(); }

  /// Takes the header's byte shared and the ranges of the archive exclusively, in ascending order. Waits up
  /// to `patience` for other processes, then returns Busy (EBUSY) with the holder's name if it can be found.
  /// ENOLCK: the file system has no locks, and nothing may be written unless the user said nolock. The File
  /// must outlive the locks. Locks of one File do not exclude each other.
  /// @param has_waited  how long the caller has waited already, for the message; nothing: the caller will
  ///                    retry, so the message need not name the holder.
  static Result<ArchiveLocks> for_patch(
      File& archive, const std::filesystem::path& path, std::vector<ByteRange> ranges,
      std::chrono::milliseconds patience,
      std::optional<std::chrono::milliseconds> has_waited = std::chrono::milliseconds(0));

  /// Does the same without the header's byte. Another commit that uses this File holds that byte, and holds
  /// it longer.
  static Result<ArchiveLocks> for_blocks(
      File& archive, const std::filesystem::path& path, std::vector<ByteRange> ranges,
      std::chrono::milliseconds patience,
      std::optional<std::chrono::milliseconds> has_waited = std::chrono::milliseconds(0));

  /// Does the same for an edit, which needs no ranges: takes the header's byte exclusively.
  static Result<ArchiveLocks> for_edit(
      File& archive, const std::filesystem::path& path, std::chrono::milliseconds patience,
      std::optional<std::chrono::milliseconds> has_waited = std::chrono::milliseconds(0));

  /// Returns true if another process holds the lock of an edit. False if the file system has no locks.
  static bool is_edited_by_other(const File& archive);
  /// Returns true if another process holds the lock of a commit or an edit: it may be writing to the archive.
  /// False if the file system has no locks.
  static bool is_changed_by_other(const File& archive);

  /// Releases the locks now. Does nothing without locks.
  void release();

 private:
  static Result<ArchiveLocks> take(File& archive, const std::filesystem::path& path,
                                   std::optional<LockKind> of_header, std::vector<ByteRange> ranges,
                                   std::chrono::milliseconds patience,
                                   std::optional<std::chrono::milliseconds> has_waited);
  File* file_ = nullptr;
  std::vector<ByteRange> held_;
};

}  // namespace stfs
