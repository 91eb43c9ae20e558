// Reads an archive in any store: its versions, its bytes and its changes. Needs no file descriptor, no lock
// and no journal.
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
  // Parts of the current version. A caller that keeps a reference pins the version if the header may change.
  [[nodiscard]] const TensorIndex& tensors() const { return version()->tensors(); }
  [[nodiscard]] const Metadata& metadata() const { return version()->metadata(); }
  [[nodiscard]] std::uint64_t header_size_bytes() const { return version()->header->size_bytes; }
  [[nodiscard]] std::uint64_t data_offset() const { return version()->data_offset(); }
  [[nodiscard]] ByteRange file_range(ByteRange data) const { return version()->file_range(data); }
  [[nodiscard]] FileStatus opened_status() const { return version()->status; }

  // The calls below read absolute ranges of a version that the caller pins. EIO with code ArchiveCut: the
  // archive has become too short. They take no lock: a caller that must not see half a commit first takes the
  // tensor's lock (fs/model/mounted_model.h). While the caller holds that lock, a reply to the kernel may
  // refer to the map.
  /// Copies the bytes, as unapplied journals override them.
  /// @param offset  in the file.
  [[nodiscard]] virtual Result<void> read_through(std::span<std::byte> to, std::uint64_t offset) const;
  /// Reads like read_through(), and returns the bytes. The bytes may be in `scratch`, which grows as needed.
  [[nodiscard]] Result<std::span<const std::byte>> read(ByteRange file_range,
                                                        std::vector<std::byte>& scratch) const;
  /// ByteSource::map(), for replies to the kernel. Returns an empty span if a journal overrides the file.
  [[nodiscard]] virtual Result<MappedSpan> map(ByteRange file_range) const;
  /// ByteSource::copy_from(). Returns false if a journal overrides the file.
  [[nodiscard]] virtual bool copy_from(ByteRange file_range, const ByteSource::Copy& copy) const;
  /// Returns true if no journal overrides the file's bytes.
  [[nodiscard]] virtual bool is_as_in_file() const { return true; }
  /// The file's own bytes, and how they are read. Lives as long as the archive.
  [[nodiscard]] virtual const ByteSource& bytes() const = 0;
  /// The file that holds the bytes, for callers that give its descriptor to the kernel. Null if the store is
  /// no file of this host. Lives as long as the archive.
  [[nodiscard]] virtual const File* local_file() const { return nullptr; }

  /// A change of the archive since it was opened or since our own last commit.
  struct Change {
    bool is_touched = false;  // another program wrote into it or cut it
    bool is_broken = false;   // ... and its header differs: the known offsets are invalid
    /// With is_broken: the new header, which has the tensors that kept their place (ArchiveHeader::keeps()).
    /// Null if there is no valid header, or if the store has no lock that keeps others from moving bytes.
    std::shared_ptr<const ArchiveHeader> header{};
    bool is_being_edited = false;  // ... and it has no header now, because an edit has not ended
    std::uint64_t size_bytes = 0;  // the file's current size
    bool is_replaced = false;      // the path names another file or none; our open file stays readable
    bool is_gone = false;          // ... and the path names none
    std::uint32_t links = 1;       // number of names of the file at the path
  };
  [[nodiscard]] virtual Result<Change> check_for_change() = 0;
  /// Returns true if the file's times are the ones that our last commit or adopt_identity() noted. Returns
  /// false while a commit of ours runs, and if the file's status can't be read.
  [[nodiscard]] bool is_as_known() const;
  /// The file's current status.
  [[nodiscard]] virtual Result<FileStatus> status() const = 0;
  /// Adopts the file's current identity as the known one, after a foreign change.
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
