// What reading an archive takes, whatever store holds it: its versions, its bytes, and whether it has
// changed. Nothing here needs a file descriptor, a lock or a journal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/archive/archive_version.h"
#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/storage/byte_source.h"
#include "core/storage/file.h"

namespace stfs {

/// Any number of threads may call.
class ArchiveReader {
 public:
  virtual ~ArchiveReader() = default;
  ArchiveReader(const ArchiveReader&) = delete;
  ArchiveReader& operator=(const ArchiveReader&) = delete;

  /// Absolute, otherwise as given: links are not resolved, so that a replacement is noticed.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Pins the current version.
  [[nodiscard]] std::shared_ptr<const ArchiveVersion> version() const {
    const MutexLock lock(version_mutex_);
    return version_;
  }
  // Of the current version. A caller that keeps a reference while the header may be changed pins the version.
  [[nodiscard]] const TensorIndex& tensors() const { return version()->tensors(); }
  [[nodiscard]] const Metadata& metadata() const { return version()->metadata(); }
  [[nodiscard]] std::uint64_t header_size_bytes() const { return version()->header->size_bytes; }
  [[nodiscard]] std::uint64_t data_offset() const { return version()->data_offset(); }
  [[nodiscard]] ByteRange file_range(ByteRange data) const { return version()->file_range(data); }
  [[nodiscard]] FileStatus opened_status() const { return version()->status; }

  // Reading takes absolute ranges of a version that the caller pins. EIO with code ArchiveCut: the archive
  // has become too short. No lock is taken: a caller that must not see half a commit takes the tensor's lock
  // first (fs/model/filesystem.h). That lock also keeps a reply of the kernel valid that refers to the map.
  /// Copies the bytes, including those of journals that could not be applied.
  /// @param offset  in the file.
  [[nodiscard]] virtual Result<void> read_through(std::span<std::byte> to, std::uint64_t offset) const;
  /// The same, but returns the bytes. They may lie in `scratch`, which grows as needed.
  [[nodiscard]] Result<std::span<const std::byte>> read(ByteRange file_range,
                                                        std::vector<std::byte>& scratch) const;
  /// ByteSource::map(), for replies to the kernel. Also empty if a journal overrides the file.
  [[nodiscard]] virtual Result<MappedSpan> map(ByteRange file_range) const;
  /// ByteSource::copy_from(). Also false if a journal overrides the file.
  [[nodiscard]] virtual bool copy_from(ByteRange file_range, const ByteSource::Copy& copy) const;
  /// Whether no journal overrides the file's own bytes.
  [[nodiscard]] virtual bool is_as_in_file() const { return true; }
  /// The file's own bytes, and how they are read. Lives as long as the archive.
  [[nodiscard]] virtual const ByteSource& bytes() const = 0;
  /// The file that holds the bytes, for callers that give its descriptor to the kernel. Null if the store is
  /// no file of this host. Lives as long as the archive.
  [[nodiscard]] virtual const File* local_file() const { return nullptr; }

  /// How the archive has changed since it was opened or since our own last commit.
  struct Change {
    bool is_touched = false;  // somebody else wrote into it or cut it
    bool is_broken = false;   // ... and its header has changed: offsets can't be trusted any more
    /// With is_broken: the new header, which tells what has kept its place (ArchiveHeader::keeps()). Null if
    /// nothing tells: there is no valid header, or the store has no lock that keeps others from moving bytes.
    std::shared_ptr<const ArchiveHeader> header{};
    bool is_being_edited = false;  // ... and there is none now, because an edit has not ended
    std::uint64_t size_bytes = 0;  // the file's current size
    bool is_replaced = false;      // the path names another file, or none: ours lives on until it is closed
    bool is_gone = false;          // ... none
    std::uint32_t links = 1;       // number of names of the file at the path
  };
  [[nodiscard]] virtual Result<Change> check_for_change() = 0;
  /// Whether the file is as our last commit or the last adopt_identity() left it, as far as its times tell.
  /// Also false while a commit of ours is running, and if the file's status can't be read.
  [[nodiscard]] bool is_as_known() const;
  /// The file's current status.
  [[nodiscard]] virtual Result<FileStatus> status() const = 0;
  /// Adopts the file's current identity as the known one, after somebody else's change.
  virtual Result<void> adopt_identity() = 0;
  /// The file's identity after our last known change.
  [[nodiscard]] virtual FileIdentity identity() const = 0;

 protected:
  explicit ArchiveReader(std::filesystem::path path) : path_(std::move(path)) {}
  void set_version(std::shared_ptr<const ArchiveVersion> next) {
    const MutexLock lock(version_mutex_);
    version_.swap(next);
  }

 private:
  const std::filesystem::path path_;
  mutable Mutex version_mutex_;  // innermost
  std::shared_ptr<const ArchiveVersion> version_ GUARDED_BY(version_mutex_);
};

}  // namespace stfs
