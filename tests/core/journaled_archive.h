// An archive and its lane journal, for the tests of lane journals.
#pragma once

#include <fcntl.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/journal/lane_journal.h"
#include "core/journal/lane_scan.h"
#include "core/journal/recovery.h"
#include "core/journal/staging_buffer.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/watched_storage.h"

namespace stfs::test {

/// An archive with a header of exactly one block, and one tensor of 20 blocks and 100 bytes.
class JournaledArchive {
 public:
  explicit JournaledArchive(Storage& storage = system_storage()) {
    const std::string data(20 * kBlockBytes + 100, 'o');
    std::string header = R"({"t":{"dtype":"U8","shape":[82020],"data_offsets":[0,82020]}})";
    header.resize(kBlockBytes - 8, ' ');
    path = directory.write("m.safetensors", archive_bytes(header, data));
    before = content_of(path);
    archive = storage.open(path, Access::ReadOnly).value();
    lane_journal.emplace(storage, path, *archive);
  }

  void prepare() {
    const auto prepared = lane_journal->prepare();
    if (!prepared) throw std::runtime_error(prepared.error().message);
    file = lane_journal->path();
    kept_ = UniqueFd(::open(file.c_str(), O_RDWR | O_CLOEXEC));
  }
  /// Commits these bytes at these offsets, each a multiple of 4096. The archive is not changed.
  Result<void> commit(const std::vector<std::pair<std::uint64_t, std::string>>& changes,
                      Durability durability = Durability::Power) {
    StagingBuffer staged;
    JournalRecord record;
    record.archive = stamp_of(*system_storage().open(path, Access::ReadOnly).value()).value();
    record.sequence = ++sequence;
    std::uint64_t at = kBlockBytes;
    for (const auto& [offset, bytes] : changes) {
      JournalRange range{
          .archive = {offset, bytes.size()}, .journal_offset = at, .new_hashes = {}, .old_hashes = {}};
      append_block_hashes(std::as_bytes(std::span(bytes)), range.new_hashes);
      append_block_hashes(std::as_bytes(std::span(before).subspan(offset, bytes.size())), range.old_hashes);
      if (auto written = staged.write(std::as_bytes(std::span(bytes)), at); !written) return written;
      record.ranges.push_back(std::move(range));
      at += round_up_to_block(bytes.size());
    }
    return lane_journal->commit(std::move(record), staged, durability);
  }
  Result<void> commit_block(char fill, Durability durability = Durability::Power) {
    return commit({{kBlockBytes, std::string(kBlockBytes, fill)}}, durability);
  }

  /// The path of the journal's file, which works even after its name was removed.
  [[nodiscard]] std::string kept() const { return "/proc/self/fd/" + std::to_string(kept_.get()); }
  /// Returns the records that another process finds in the journal.
  [[nodiscard]] std::vector<JournalRecord> records() const {
    const auto opened = system_storage().open(kept(), Access::ReadOnly).value();
    return read_lanes(*opened).value();
  }
  /// Returns true if the owner's lock is free, so that others see a dead owner.
  [[nodiscard]] bool is_free() const {
    const auto opened = system_storage().open(kept(), Access::ReadWrite).value();
    return !opened->try_lock({0, 1}, LockKind::Exclusive)->has_value();
  }
  [[nodiscard]] bool is_named() const { return std::filesystem::exists(file); }
  /// Returns the number of files beside the archive.
  [[nodiscard]] std::ptrdiff_t journals() const {
    return std::distance(std::filesystem::directory_iterator(directory.path()), {}) - 1;
  }
  /// Ends the owner, recovers the archive and returns its bytes.
  [[nodiscard]] std::string recovered() {
    lane_journal.reset();
    const auto opened = system_storage().open(path, Access::ReadWrite).value();
    if (auto done = recover(system_storage(), path, *opened); !done)
      throw std::runtime_error(done.error().message);
    return content_of(path);
  }
  [[nodiscard]] std::string patched(char fill) const {
    return std::string(before).replace(kBlockBytes, kBlockBytes, std::string(kBlockBytes, fill));
  }

  TemporaryDirectory directory;
  std::string path;
  std::string before;
  std::filesystem::path file;
  std::unique_ptr<File> archive;
  std::optional<LaneJournal> lane_journal;
  std::uint64_t sequence = 0;

 private:
  UniqueFd kept_;
};

}  // namespace stfs::test
