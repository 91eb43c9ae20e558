// An archive whose owner commits and does not apply, for the tests of lane journals beside an archive. It
// also has the places in the journal that these tests damage.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/journal/lane_journal.h"
#include "core/journal/lane_scan.h"
#include "core/journal/recovery.h"
#include "core/journal/staging_buffer.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/overwrite.h"
#include "tests/support/temporary_directory.h"

namespace stfs::test {

/// The archive has four data blocks behind a header of one block. The change is in the last two.
inline constexpr std::uint64_t kDataBlocks = 4;
inline constexpr std::uint64_t kChangedAt = 3 * kBlockBytes;
inline constexpr std::uint64_t kChangedBytes = 2 * kBlockBytes;

/// An archive, and the owner of a lane journal who commits without applying.
class OwnedArchive {
 public:
  OwnedArchive() {
    std::string header = R"({"t":{"dtype":"U8","shape":[16384],"data_offsets":[0,16384]}})";
    header.resize(kBlockBytes - 8, ' ');
    path =
        directory.write("m.safetensors", archive_bytes(header, std::string(kDataBlocks * kBlockBytes, 'o')));
    before = content_of(path);
    archive = system_storage().open(path, Access::ReadOnly).value();
    owner.emplace(system_storage(), path, *archive);
    if (!owner->prepare()) throw std::runtime_error("prepare");
    journal = owner->path();
  }

  /// Commits new bytes, on top of the bytes in the archive.
  void commit(char fill) {
    StagingBuffer staged;
    const std::string fresh(kChangedBytes, fill);
    const std::string old = content_of(path).substr(kChangedAt, kChangedBytes);
    JournalRecord record;
    record.archive = stamp_of(*archive).value();
    record.sequence = next_sequence++;
    record.owner_pid = ::getpid();
    record.ranges = {{.archive = {kChangedAt, kChangedBytes},
                      .journal_offset = kBlockBytes,
                      .new_hashes = {},
                      .old_hashes = {}}};
    append_block_hashes(std::as_bytes(std::span(fresh)), record.ranges[0].new_hashes);
    append_block_hashes(std::as_bytes(std::span(old)), record.ranges[0].old_hashes);
    const bool is_done = staged.write(std::as_bytes(std::span(fresh)), kBlockBytes) &&
                         owner->commit(std::move(record), staged, Durability::Process);
    if (!is_done) throw std::runtime_error("commit");
  }
  /// Applies the change, as the owner does after a commit.
  void apply(char fill) const { overwrite(path, kChangedAt, std::string(kChangedBytes, fill)); }
  /// Makes one commit in this lane.
  void commit_in(std::size_t lane, char fill) {
    if (lane == 1) {
      commit('x');
      apply('x');
      before = content_of(path);
    }
    commit(fill);
  }
  void die() { owner.reset(); }

  [[nodiscard]] std::string patched(char fill) const {
    return std::string(before).replace(kChangedAt, kChangedBytes, std::string(kChangedBytes, fill));
  }
  [[nodiscard]] std::string content() const { return content_of(path); }
  [[nodiscard]] bool has_journal() const { return std::filesystem::exists(journal); }

  [[nodiscard]] std::vector<JournalRecord> records() const {
    const auto file = system_storage().open(journal, Access::ReadOnly).value();
    return read_lanes(*file).value();
  }
  Result<std::vector<JournalReport>> recover_all(const RecoveryOptions& options = {},
                                                 Storage& storage = system_storage()) const {
    const auto file = storage.open(path, Access::ReadWrite).value();
    return recover(storage, path, *file, options);
  }
  [[nodiscard]] JournalReport recover_one(const RecoveryOptions& options = {},
                                          Storage& storage = system_storage()) const {
    auto reports = recover_all(options, storage);
    if (!reports) throw std::runtime_error(reports.error().message);
    if (reports->size() != 1) throw std::runtime_error("one journal expected");
    return reports->front();
  }
  [[nodiscard]] Result<Obstacle> obstacle(std::vector<ByteRange> locked,
                                          const std::filesystem::path& own = {}) const {
    const auto file = system_storage().open(path, Access::ReadWrite).value();
    return find_obstacle(system_storage(), path, *file, locked, own);
  }
  /// Whether the journal prevents a commit of any blocks, and the error gives the reason.
  [[nodiscard]] bool blocks_commits() const {
    const auto found = obstacle({{kBlockBytes, 1}});
    return !found && found.error().errno_value == EIO &&
           found.error().message.find("stfs recover") != std::string::npos;
  }

  TemporaryDirectory directory;
  std::string path;
  std::string before;
  std::unique_ptr<File> archive;
  std::optional<LaneJournal> owner;
  std::filesystem::path journal;
  std::uint64_t next_sequence = 1;
};

/// Returns the place of a lane's head, or of the head's copy.
inline std::uint64_t head_at(std::size_t lane, bool is_copy) {
  return kLaneHeads.offset + (lane + (is_copy ? kLanes : 0)) * kBlockBytes;
}

/// Returns the place in the journal of the new bytes of a commit.
inline std::uint64_t new_bytes_at(std::size_t lane) {
  return lane == 0 ? kLaneHeads.offset - kChangedBytes : kLaneHeads.end();
}

}  // namespace stfs::test
