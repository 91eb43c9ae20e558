// One open `.safetensors` file, parsed and indexed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/base/durability.h"
#include "core/base/error.h"
#include "core/base/reader_writer_lock.h"
#include "core/format/header.h"
#include "core/format/tensor_index.h"
#include "core/journal/recovery.h"
#include "core/journal/standing_journal.h"
#include "core/storage/byte_source.h"
#include "core/storage/file.h"

namespace stfs {

/// Returns CLOCK_REALTIME in ns. Fine: the clock's full resolution. Coarse: the resolution of file times.
enum class Clock : std::uint8_t { Fine, Coarse };
std::int64_t wall_clock_ns(Clock clock);

/// What the first write has copied. On overlayfs, a file on a lower layer is copied whole to the upper layer
/// when it is opened for writing.
struct CopyUp {
  std::uint64_t size_bytes = 0;
  std::chrono::milliseconds took{};
};

/// Any number of threads may read. Writing goes through Transaction, which alone calls open_for_writing(),
/// writes to file() and then calls adopt_identity().
class Archive {
 public:
  /// Opens the archive. First finishes what dead writers have committed (ReadWrite), or reads it from their
  /// journals (ReadOnly). Then checks every rule of the format and makes the data readable. ReadWrite fails
  /// with EACCES or EROFS if the file can't be written; the caller decides whether to try ReadOnly then. The
  /// file is opened for writing only if a journal lies beside it; otherwise open_for_writing() does that
  /// later.
  static Result<std::unique_ptr<Archive>> open(const std::filesystem::path& path, Access access,
                                               Storage& storage = system_storage(), Io io = Io::Auto);

  /// Absolute, otherwise as given: links are not resolved, so that a replacement is noticed.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// The path with links resolved. The journals lie beside it.
  [[nodiscard]] const std::filesystem::path& real_path() const { return real_path_; }
  [[nodiscard]] Access access() const { return access_; }
  [[nodiscard]] const TensorIndex& tensors() const { return header_.tensors; }
  [[nodiscard]] const Metadata& metadata() const { return header_.metadata; }
  /// Size of the header's JSON, its padding included, without the 8 bytes before it.
  [[nodiscard]] std::uint64_t header_size_bytes() const { return header_size_bytes_; }
  /// Absolute offset in the file of the first byte of data.
  [[nodiscard]] std::uint64_t data_offset() const { return kHeaderLengthBytes + header_size_bytes_; }
  /// Converts a range of the data section to an absolute range of the file.
  [[nodiscard]] ByteRange file_range(ByteRange data) const {
    return {data_offset() + data.offset, data.size_bytes};
  }
  /// The journals that recovery found at opening. ReadOnly: only journals that may hold a commit that readers
  /// do not see (JournalReport::blocks_commits).
  [[nodiscard]] const std::vector<JournalReport>& recovered() const { return recovered_; }
  /// Size, owner and mode that the file had at opening.
  [[nodiscard]] const FileStatus& opened_status() const { return status_; }

  // Reading takes absolute ranges. EIO with code ArchiveCut: the file has become too short. No lock is taken:
  // a caller that must not see half a commit takes the tensor's lock first (fs/model/filesystem.h).
  /// Copies the bytes, including those of journals that could not be applied.
  /// @param offset  in the file.
  [[nodiscard]] Result<void> read_through(std::span<std::byte> to, std::uint64_t offset) const;
  /// The same, but returns the bytes. They may lie in `scratch`, which grows as needed.
  [[nodiscard]] Result<std::span<const std::byte>> read(ByteRange file_range,
                                                        std::vector<std::byte>& scratch) const;
  /// ByteSource::map(), for replies to the kernel. Also empty if a journal overrides the file.
  [[nodiscard]] Result<MappedSpan> map(ByteRange file_range) const;
  /// ByteSource::copy_from(). Also false if a journal overrides the file.
  [[nodiscard]] bool copy_from(ByteRange file_range, const ByteSource::Copy& copy) const {
    return !has_overlays_ && !is_applying_ && !file_range.empty() && bytes_->copy_from(file_range, copy);
  }

  /// Whether no journal overrides the file's own bytes.
  [[nodiscard]] bool is_as_in_file() const { return !has_overlays_; }
  /// Tells whether the file is mapped, and if not, why.
  [[nodiscard]] const ByteSource& bytes() const { return *bytes_; }

  /// How the file has changed since it was opened or since our own last commit.
  struct Change {
    bool is_touched = false;       // somebody else wrote into it or cut it
    bool is_broken = false;        // ... and its header has changed: no offset can be trusted any more
    std::uint64_t size_bytes = 0;  // the file's current size
    bool is_replaced = false;      // the path names another file, or none: ours lives on until it is closed
    bool is_gone = false;          // ... none
    std::uint32_t links = 1;       // number of names of the file at the path
  };
  [[nodiscard]] Result<Change> check_for_change();
  /// Whether the file is as our last commit or the last adopt_identity() left it, as far as its times tell.
  /// Also false while a commit of ours is running, and if the file's status can't be read.
  [[nodiscard]] bool is_as_known() const;

  /// Opens the file for writing, once: before the first write, and before any lock on the archive. On
  /// overlayfs this may copy the whole file, which takes time. Reads go on meanwhile, and come from the copy
  /// afterwards. EROFS if access() is ReadOnly. ESTALE (ArchiveChanged) if the file was replaced.
  Result<void> open_for_writing();
  /// Registers a callback for a copy by overlayfs. It runs on the thread that has caused the copy, or at once
  /// if a copy was made before.
  void tell_copy_to(std::function<void(const CopyUp&)> tell);
  /// The file, open for reading, and for writing after open_for_writing(). Lives as long as the archive.
  [[nodiscard]] File& file() const { return *present_.load(); }
  [[nodiscard]] Storage& storage() const { return *storage_; }
  /// The durability that a commit must reach at least. If another program serves the file, other hosts see
  /// only synced bytes.
  [[nodiscard]] Durability durability(Durability asked) const {
    return is_served_ ? Durability::Power : asked;
  }
  /// The archive's identity in journals. Its size is the size at opening.
  [[nodiscard]] ArchiveStamp stamp() const;

  /// The journal of small commits, once prepared. Callers settle it when nothing is to be committed, and
  /// retire it at the end.
  [[nodiscard]] StandingJournal& standing_journal() { return *standing_; }
  /// Keeps a file that a commit no longer needs until take_discarded(): closing a large file takes time.
  void discard(std::unique_ptr<File> file);
  [[nodiscard]] std::vector<std::unique_ptr<File>> take_discarded();

  /// The journals that recovery has made void here and could not remove (JournalReport::is_left_void). Only
  /// for commits, which never overlap.
  [[nodiscard]] std::span<const std::filesystem::path> left_void() const { return left_void_; }
  void note_left_void(const std::vector<JournalReport>& reports);

  /// Makes every later commit fail with this error: the archive's own bytes may be incomplete.
  /// @param journal  the journal that recovery has to finish first; empty: writing stays stopped for good.
  void stop_writing(Error why, std::filesystem::path journal);
  [[nodiscard]] Result<void> check_writable() const;
  /// Ends stop_writing() if recovery has finished that journal: its name is gone, on stable storage. Changes
  /// nothing if the journal is still there, or if that can't be known. Call it before a commit takes locks.
  Result<void> resume_writing();
  /// From now on, reads of these ranges come from the journal. Needs no memory after reserve_overlay().
  void overlay(PendingJournal journal);
  void reserve_overlay();

  /// Blocks of a journal that are being applied to the archive.
  struct OnTheWay {
    const File* journal = nullptr;  // null: none are being applied
    std::span<const JournalRange> ranges;
  };
  /// Until the next call, reads of these ranges come from the journal. Needs no memory.
  void show_while_applied(OnTheWay blocks);

  /// Adopts the file's current identity as the known one, after somebody else's change.
  Result<void> adopt_identity();
  /// The same after our own commit.
  /// @param written  the file's identity right after our last write, so that later writes by others are still
  ///                 noticed. Ignored if a server sets the file's times: then nobody can tell writes apart.
  Result<void> adopt_own_change(const FileIdentity& written);
  /// Syncs the file. Its content is then on stable storage for as long as its identity does not change.
  Result<void> sync();
  /// Calls sync(), unless the content that the file had when its identity was adopted is known to be on
  /// stable storage: as far as the mtime tells, somebody else may have written it without a sync. A failure
  /// stops all writing: a later sync would succeed without those bytes.
  Result<void> sync_what_others_wrote();
  /// The file identity after our last known change.
  [[nodiscard]] FileIdentity identity() const;

 private:
  Archive() = default;
  static Result<std::unique_ptr<Archive>> open_unguarded(const std::filesystem::path& path, Access access,
                                                         Storage& storage, Io io);
  [[nodiscard]] Result<Change> look_for_change();
  Result<void> recover_journals();
  /// Looks for the journals that reads must go through, if there were any at the last look.
  Result<void> renew_overlays();
  /// Reads the status and the header, through pending journals, makes all checks (1 to 10, format/header.h),
  /// and opens the byte source.
  Result<void> load(Io io);
  [[nodiscard]] Result<std::string> header_text(std::uint64_t file_size_bytes) const;
  /// As read_through(), but does not check the file's size: headers are parsed or hashed, which reveals
  /// zeros.
  [[nodiscard]] Result<void> read_file(std::span<std::byte> to, std::uint64_t offset) const;
  /// Overwrites `to` with what pending journals hold of the range.
  [[nodiscard]] Result<void> lay_over(std::span<std::byte> to, std::uint64_t offset) const;
  Result<void> open_for_writing_unguarded();
  /// Maps the copy if another process has caused overlayfs to copy the file: until then the map shows the
  /// lower layer's file.
  Result<void> follow_copy();

  std::filesystem::path path_;
  std::filesystem::path real_path_;  // links resolved
  Access access_ = Access::ReadOnly;
  Storage* storage_ = nullptr;
  std::unique_ptr<File> file_;  // open for reading
  bool is_served_ = false;
  bool is_remote_ = false;  // another host may set its times
  FileStatus status_;
  bool is_layered_ = false;  // lies on overlayfs
  std::unique_ptr<ByteSource> bytes_;
  Header header_;
  std::uint64_t header_size_bytes_ = 0;
  std::uint64_t header_hash_ = 0;
  std::vector<JournalReport> recovered_;
  std::vector<std::filesystem::path> left_void_;
  std::unique_ptr<StandingJournal> standing_;

  std::mutex opening_mutex_;  // guards the members down to present_; taken before mutex_
  std::unique_ptr<File> writable_;
  std::optional<CopyUp> copy_up_;
  std::function<void(const CopyUp&)> tell_copy_;
  std::atomic<File*> present_ = nullptr;  // writable_ if open, else file_

  mutable std::mutex mutex_;  // guards the members down to discarded_; innermost
  FileStatus stamped_;        // as status_, but of the copy if there is one
  FileIdentity identity_;
  FileIdentity synced_;  // identity at the last sync; of no file before the first
  std::optional<Error> write_failure_;
  std::filesystem::path unfinished_;  // recovery must remove this journal before the next commit
  std::vector<std::unique_ptr<File>> discarded_;
  std::atomic<bool> has_overlays_ = false;
  std::atomic<bool> is_applying_ = false;

  /// Guards the members below. Taken after mutex_, held by reads of journals.
  mutable ReaderWriterLock overlay_lock_;
  std::vector<PendingJournal> overlays_;  // later ones override earlier ones
  OnTheWay on_the_way_;                   // overrides overlays_
};

}  // namespace stfs
