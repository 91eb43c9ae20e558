// One `.safetensors` file, open, parsed and indexed.
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

/// CLOCK_REALTIME, in ns: as fine as the clock goes, or as coarse as the times of files are.
enum class Clock : std::uint8_t { Fine, Coarse };
std::int64_t wall_clock_ns(Clock clock);

/// What the first write has copied: the file lay on a lower layer of overlayfs, and opening it for writing
/// copies all of it to the upper layer.
struct CopyUp {
  std::uint64_t size_bytes = 0;
  std::chrono::milliseconds took{};
};

/// Any number of threads may read. Writing goes through Transaction, which alone calls open_for_writing(),
/// file() to write and then adopt_identity().
class Archive {
 public:
  /// Opens, finishes what dead writers have committed (ReadWrite) or reads it out of their journals
  /// (ReadOnly), checks every rule of the format and makes the data readable. ReadWrite fails with EACCES or
  /// EROFS where the file can't be written; the caller decides whether to try ReadOnly then. The file is
  /// opened for writing only by open_for_writing(), or where a journal lies beside it.
  static Result<std::unique_ptr<Archive>> open(const std::filesystem::path& path, Access access,
                                               Storage& storage = system_storage(), Io io = Io::Auto);

  /// Absolute, as given otherwise: links are not resolved, so that a replacement is seen.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Beside this one lie the journals.
  [[nodiscard]] const std::filesystem::path& real_path() const { return real_path_; }
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
  /// What recovery found beside the archive when it was opened; ReadOnly: only journals that may hold a
  /// commit that is not shown (JournalReport::blocks_commits).
  [[nodiscard]] const std::vector<JournalReport>& recovered() const { return recovered_; }
  /// Size, owner and mode of the file as they were when it was opened.
  [[nodiscard]] const FileStatus& opened_status() const { return status_; }

  // Bytes of absolute ranges. EIO with code ArchiveCut where the file has become too short. No lock is taken:
  // a caller that must not see half a commit takes the tensor's lock first (fs/model/filesystem.h).
  /// Copies what lies there, journals that could not be applied included.
  /// @param offset  in the file.
  [[nodiscard]] Result<void> read_through(std::span<std::byte> to, std::uint64_t offset) const;
  /// The same into `scratch`, which grows as needed.
  [[nodiscard]] Result<std::span<const std::byte>> read(ByteRange file_range,
                                                        std::vector<std::byte>& scratch) const;
  /// As ByteSource::map(), for replies to the kernel; empty too where a journal lies over the file.
  [[nodiscard]] Result<MappedSpan> map(ByteRange file_range) const;
  /// As ByteSource::copy_from().
  [[nodiscard]] bool copy_from(ByteRange file_range, const ByteSource::Copy& copy) const {
    return !has_overlays_ && !is_applying_ && !file_range.empty() && bytes_->copy_from(file_range, copy);
  }

  /// No journal lies over the file's own bytes.
  [[nodiscard]] bool is_as_in_file() const { return !has_overlays_; }
  /// Whether there is a map, and why not.
  [[nodiscard]] const ByteSource& bytes() const { return *bytes_; }

  /// What has become of the file since it was opened or since our own last commit.
  struct Change {
    bool is_touched = false;       // somebody else wrote into it or cut it
    bool is_broken = false;        // ... and the header is another one: no offset can be trusted any more
    std::uint64_t size_bytes = 0;  // of the file, now
    bool is_replaced = false;      // another file lies at the path, or none: ours lives on until it is closed
    bool is_gone = false;          // ... none
    std::uint32_t links = 1;       // names that the file at the path has
  };
  [[nodiscard]] Result<Change> check_for_change();
  /// The file is as our last commit or the last adopt_identity() has left it, as far as its times tell. False
  /// while a commit of ours is under way, too, and where the file can't be asked.
  [[nodiscard]] bool is_as_known() const;

  /// Opens the file for writing, once: before the first write, and before a lock on the archive. On overlayfs
  /// this may copy the whole file, which takes its time; reads go on meanwhile, and come from the copy
  /// afterwards. EROFS where access() is ReadOnly; ESTALE (ArchiveChanged) where the file was replaced.
  Result<void> open_for_writing();
  /// Who is told of a copy, on the thread that has caused it; at once where there has been one.
  void tell_copy_to(std::function<void(const CopyUp&)> tell);
  /// Open for reading, and for writing after open_for_writing(). Lives as long as the archive.
  [[nodiscard]] File& file() const { return *present_.load(); }
  [[nodiscard]] Storage& storage() const { return *storage_; }
  /// What a commit syncs, at least: where a program serves the file, other hosts see only what is synced.
  [[nodiscard]] Durability durability(Durability asked) const {
    return is_served_ ? Durability::Power : asked;
  }
  /// What journals name the archive by; its size is that of the opening.
  [[nodiscard]] ArchiveStamp stamp() const;

  /// What its small commits go through, once it is prepared; to be settled when nothing is to be committed,
  /// and retired at the end.
  [[nodiscard]] StandingJournal& standing_journal() { return *standing_; }
  /// Closing a large file takes its time: what commits have done with is kept for take_discarded().
  void discard(std::unique_ptr<File> file);
  [[nodiscard]] std::vector<std::unique_ptr<File>> take_discarded();

  /// The journals that recovery has made void here and could not remove (JournalReport::is_left_void). For
  /// commits alone, which never overlap.
  [[nodiscard]] std::span<const std::filesystem::path> left_void() const { return left_void_; }
  void note_left_void(const std::vector<JournalReport>& reports);

  /// Refuses every further commit with that error: the archive's own bytes can't be trusted to be whole.
  /// @param journal  what recovery has to finish first; empty: for good.
  void stop_writing(Error why, std::filesystem::path journal);
  [[nodiscard]] Result<void> check_writable() const;
  /// Ends stop_writing() where recovery has finished that journal: its name is gone, and durably so. Changes
  /// nothing where the journal is still there, or where nobody can tell. Call it before a commit takes locks.
  Result<void> resume_writing();
  /// Reads of these ranges come from the journal from now on. After reserve_overlay() it needs no memory.
  void overlay(PendingJournal journal);
  void reserve_overlay();

  /// Blocks of a journal that are on their way into the archive.
  struct OnTheWay {
    const File* journal = nullptr;  // null: nothing is
    std::span<const JournalRange> ranges;
  };
  /// Reads of these ranges come from the journal until the next call. Needs no memory.
  void show_while_applied(OnTheWay blocks);

  /// Takes the file's present identity for the known one: after a foreign change.
  Result<void> adopt_identity();
  /// The same after our own commit.
  /// @param written  the file directly behind our last write: what somebody else has written since then is
  /// still to
  ///                 be noticed. Does not count where a server sets the times of files: there nobody can
  ///                 tell.
  Result<void> adopt_own_change(const FileIdentity& written);
  /// Syncs the file: what it holds now is on stable storage, as long as its identity stays.
  Result<void> sync();
  /// The same, unless that is known of what it held when its identity was adopted: somebody else may have
  /// written into it and synced nothing, as far as its mtime tells. A failure stops all writing: a later sync
  /// would succeed without those bytes.
  Result<void> sync_what_others_wrote();
  /// The identity last known to be ours.
  [[nodiscard]] FileIdentity identity() const;

 private:
  Archive() = default;
  static Result<std::unique_ptr<Archive>> open_unguarded(const std::filesystem::path& path, Access access,
                                                         Storage& storage, Io io);
  [[nodiscard]] Result<Change> look_for_change();
  Result<void> recover_journals();
  /// Looks for the journals that reads must go through, where some did at the last look.
  Result<void> renew_overlays();
  /// What check 1 to 10 are made of, journals included.
  Result<void> load(Io io);
  [[nodiscard]] Result<std::string> header_text(std::uint64_t file_size_bytes) const;
  /// As read_through(), without a look at the size: headers are parsed or hashed, so that zeros show.
  [[nodiscard]] Result<void> read_file(std::span<std::byte> to, std::uint64_t offset) const;
  /// Puts what pending journals have of the range over it.
  [[nodiscard]] Result<void> lay_over(std::span<std::byte> to, std::uint64_t offset) const;
  Result<void> open_for_writing_unguarded();
  /// Somebody else may have had the file copied up: the map shows what lay on the lower layer until then.
  Result<void> follow_copy();

  std::filesystem::path path_;
  std::filesystem::path real_path_;  // without links
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

  std::mutex opening_mutex_;  // guards what follows; taken before mutex_
  std::unique_ptr<File> writable_;
  std::optional<CopyUp> copy_up_;
  std::function<void(const CopyUp&)> tell_copy_;
  std::atomic<File*> present_ = nullptr;  // writable_ where there is one, else file_

  mutable std::mutex mutex_;  // guards what follows; innermost
  FileStatus stamped_;        // as status_, but of the copy where there is one
  FileIdentity identity_;
  FileIdentity synced_;  // of what is on stable storage; of no file before the first sync
  std::optional<Error> write_failure_;
  std::filesystem::path unfinished_;  // the journal that must go before anything is committed
  std::vector<std::unique_ptr<File>> discarded_;
  std::atomic<bool> has_overlays_ = false;
  std::atomic<bool> is_applying_ = false;

  mutable ReaderWriterLock
      overlay_lock_;  // guards what follows; taken after mutex_, held by reads of journals
  std::vector<PendingJournal> overlays_;  // later ones lie over earlier ones
  OnTheWay on_the_way_;                   // lies over them
};

}  // namespace stfs
