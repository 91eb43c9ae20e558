// Reads an archive from a file of this host: its header, its bytes as journals override them, and the changes
// that others make.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/archive/archive_reader.h"
#include "core/archive/journal_overlay.h"
#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/storage/file.h"
#include "core/storage/file_byte_source.h"

namespace stfs {

/// The part of Archive that reads. Archive opens it, and switches it to the file that it opens for writing.
class LocalReader : public ArchiveReader {
 public:
  [[nodiscard]] Result<void> read_through(std::span<std::byte> to, std::uint64_t offset) const override;
  [[nodiscard]] Result<MappedSpan> map(ByteRange file_range) const override;
  [[nodiscard]] bool copy_from(ByteRange file_range, const ByteSource::Copy& copy) const override {
    return overlay_.is_empty() && ArchiveReader::copy_from(file_range, copy);
  }
  [[nodiscard]] bool is_as_in_file() const override { return !overlay_.has_pending(); }
  /// JournalOverlay::new_index().
  [[nodiscard]] Result<std::optional<std::string>> new_index(std::string_view name,
                                                             std::string_view present) const {
    return overlay_.new_index(name, present);
  }
  [[nodiscard]] const ByteSource& bytes() const override { return *bytes_.load(); }
  [[nodiscard]] const File* local_file() const override { return present_; }

  [[nodiscard]] Result<Change> check_for_change() override;
  [[nodiscard]] Result<FileStatus> status() const override { return file().status(); }
  Result<void> adopt_identity() override;
  [[nodiscard]] FileIdentity identity() const override;

  /// The path with links resolved. The journals are in its directory.
  [[nodiscard]] const std::filesystem::path& real_path() const { return real_path_; }
  /// Reaches the files beside real_path() through the directory that was opened with the archive.
  [[nodiscard]] Storage& storage() const { return *beside_; }
  /// The status of the file that path() names now.
  [[nodiscard]] Result<FileStatus> status_at_path() const { return storage_.status(path()); }

 protected:
  /// @param beside  storage_beside() the file.
  /// @param file    open for reading.
  LocalReader(std::filesystem::path path, std::filesystem::path real_path, Storage& storage,
              std::shared_ptr<Storage> beside, std::unique_ptr<File> file);
  /// Opens the file once more, for other access (Storage::open_again()).
  [[nodiscard]] Result<std::unique_ptr<File>> open_again(Access access) const {
    return storage_.open_again(*file_, path(), access);
  }

  /// Reads the status and the header, through pending journals, makes all checks (1 to 10, format/header.h),
  /// and opens the byte source. Makes the first version.
  Result<void> load(Io io);
  /// Takes the readers' byte (journal/file_lock.h). Waits for an edit that needs the archive without readers.
  /// Does nothing where the file system has no locks.
  Result<void> lock_as_reader(Deadline wait_until);
  /// Returns true if the error of try_lock() means that the store has no locks. Some stores return odd errors
  /// then. Reads then take no lock.
  [[nodiscard]] static bool lacks_readers_lock(const Error& error) {
    return lacks_locks(error) || error.errno_value == EINVAL || error.errno_value == EPERM;
  }
  /// Returns true if the file begins with kNoHeaderLength: an edit is being applied, or waits for recovery.
  [[nodiscard]] bool is_being_edited() const;
  /// Makes all calls use the file that was opened again for writing.
  /// @param opened  must outlive the reader.
  /// @param before  the status of the file that is open for reading, before `opened` was opened.
  /// @param after   the status of `opened`. On overlayfs it may be a copy.
  Result<void> switch_to(File& opened, const FileStatus& before, const FileStatus& after);
  /// Makes the next version, after the file's structure has changed.
  /// @param header  as it is in the file. ESTALE: the file has another size.
  /// @param ids     of its tensors.
  Result<void> change_structure(std::shared_ptr<const ArchiveHeader> header, TensorIds ids);
  /// Makes reads go through the journals that wait for recovery.
  /// @return the journals that may hold a commit that can't be read here.
  Result<std::vector<JournalReport>> show_pending_journals();
  /// Calls show_pending_journals() if reads go through pending journals.
  Result<void> renew_overlay();
  void set_identity(const FileIdentity& identity);

  [[nodiscard]] File& opened_file() const { return *file_; }
  [[nodiscard]] File& file() const { return *present_; }
  [[nodiscard]] bool is_opened_again() const { return present_ != file_.get(); }
  [[nodiscard]] JournalOverlay& overlay() { return overlay_; }

 private:
  [[nodiscard]] Result<Change> look_for_change();
  /// Reads the open file's size and header, and compares the header with the known one. An edit of another
  /// process may begin or end during the read: look_for_change() reads an invalid header once more.
  [[nodiscard]] Result<Change> look_at_file() const;
  [[nodiscard]] Result<std::string> header_text(std::uint64_t file_size_bytes) const;
  /// Makes all checks (1 to 10, format/header.h).
  [[nodiscard]] static Result<std::shared_ptr<const ArchiveHeader>> parse(std::string_view json,
                                                                          std::uint64_t file_size_bytes);
  /// Reads like read_through(), but does not check the file's size: headers are parsed or hashed, which
  /// reveals zeros.
  [[nodiscard]] Result<void> read_file(std::span<std::byte> to, std::uint64_t offset) const;
  /// Returns the part of `to` that is in the file. An edit that waits for recovery may make the archive
  /// longer: the rest of `to` is then filled with zeros, which the overlay replaces.
  [[nodiscard]] Result<std::span<std::byte>> part_in_file(std::span<std::byte> to,
                                                          std::uint64_t offset) const;
  /// Returns true if `after` is a copy of the file that had the status `before`.
  [[nodiscard]] static bool is_copy(const FileStatus& before, const FileStatus& after);
  /// Maps the copy if another process has caused overlayfs to copy the file. Before that call the map shows
  /// the file of the lower layer.
  Result<void> follow_copy();

  const std::filesystem::path real_path_;
  Storage& storage_;  // for path()
  const std::shared_ptr<Storage> beside_;
  const std::unique_ptr<File> file_;  // open for reading
  const bool is_layered_;             // the file is on overlayfs
  std::atomic<File*> present_;        // the file after switch_to(), else file_
  bool is_locked_ = false;            // holds the readers' byte
  Io io_ = Io::Auto;
  /// The newest of sources_, which all reads use. Older ones stay: replies may refer to their maps.
  std::atomic<FileByteSource*> bytes_ = nullptr;
  std::vector<std::shared_ptr<FileByteSource>> sources_;
  JournalOverlay overlay_;

  mutable Mutex identity_mutex_;  // innermost
  FileIdentity identity_ GUARDED_BY(identity_mutex_);
};

}  // namespace stfs
