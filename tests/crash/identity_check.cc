// The identity of archives: journals beside an archive that is not theirs, and archives that are replaced
// during a transaction.
#include <algorithm>
#include <string>

#include "core/journal/recovery.h"
#include "tests/crash/journal_check.h"
#include "tests/support/plain.h"

namespace stfs::test {
namespace {

/// The valid journal beside this archive must be left alone.
std::optional<std::string> check_foreign(std::string_view what, const Content& archive, bool is_other_file,
                                         const DiskOptions& options,
                                         const ValidJournal& valid = valid_journal(),
                                         JournalState state = JournalState::Foreign) {
  DiskModel disk(options);
  if (is_other_file) disk.put("/models/other", archive);
  disk.put(kArchivePath, archive);
  disk.put(valid.path, valid.bytes);
  const auto process = disk.start_process();
  auto file = process->open(kArchivePath, Access::ReadWrite);
  const auto reports = recover(*process, kArchivePath, **file);
  const DiskImage after = disk.image();
  const std::string name(what);
  if (!reports) return name + ": " + text_of(reports.error());
  if (!after.has_content(after.inode_at(kArchivePath), archive)) return name + ": the archive was written to";
  if (after.inode_at(valid.path) == 0) return name + ": the journal was removed";
  if (reports->size() != 1) return name + ": it is not reported";
  const JournalState found = reports->front().state;
  if (found != state) return name + ": it is reported as " + std::string(name_of(found));
  return std::nullopt;
}

/// The journal must also be left alone if only the archive's inode number or only its birth time differs.
std::optional<std::string> check_foreign_file(std::string_view what, InodeNumber inode,
                                              std::int64_t later_ns) {
  const ValidJournal& valid = valid_journal();
  DiskImage image;
  while (image.inodes() < inode) image.create({});
  image.change(inode).birth_ns = image.at(1).birth_ns + later_ns;
  image.write(inode, 0, valid.archive_before);
  image.sync(inode);
  image.link(inode, kArchivePath);
  image.sync_names(kDirectory);
  DiskModel disk({}, image);
  disk.put(valid.path, valid.bytes);
  const auto process = disk.start_process();
  auto file = process->open(kArchivePath, Access::ReadWrite);
  const auto reports = recover(*process, kArchivePath, **file);
  const std::string name(what);
  if (!reports) return name + ": " + text_of(reports.error());
  if (!disk.image().has_content(inode, valid.archive_before)) return name + ": the archive was written to";
  if (reports->size() != 1 || reports->front().state != JournalState::Foreign)
    return name + ": it is not reported so";
  return std::nullopt;
}

/// The valid journal beside its archive must be applied.
std::optional<std::string> check_known(std::string_view what, const DiskOptions& options,
                                       const ValidJournal& valid) {
  DiskModel disk(options);
  disk.put(kArchivePath, valid.archive_before);
  disk.put(valid.path, valid.bytes);
  const auto process = disk.start_process();
  auto file = process->open(kArchivePath, Access::ReadWrite);
  const auto reports = recover(*process, kArchivePath, **file);
  const std::string name(what);
  if (!reports) return name + ": " + text_of(reports.error());
  const DiskImage after = disk.image();
  if (!after.has_content(after.inode_at(kArchivePath), valid.archive_after))
    return name + ": it was not applied";
  return std::nullopt;
}

/// The number of ranges whose old blocks are in the journal.
std::size_t with_old_blocks(const ValidJournal& journal) {
  const std::span record = std::span(journal.bytes).subspan(journal.record.offset, journal.record.size_bytes);
  const auto read =
      decode_record({reinterpret_cast<const char*>(record.data()), record.size()}, journal.bytes.size());
  return static_cast<std::size_t>(
      std::ranges::count_if(read->ranges, [](const JournalRange& range) { return range.old_offset != 0; }));
}

/// A forced recovery applies a foreign journal, but only if the archive has the journal's old or new blocks.
/// @param other_byte  offset of a byte that gets a value unknown to commit and journal; 0: none.
std::optional<std::string> check_forced(const ValidJournal& valid, std::uint64_t other_byte) {
  const bool has_other_bytes = other_byte != 0;
  Content archive = valid.archive_before;
  if (has_other_bytes) archive[other_byte] ^= std::byte{1};
  DiskModel disk;
  disk.put("/models/other", archive);
  disk.put(kArchivePath, archive);
  disk.put(valid.path, valid.bytes);
  const auto process = disk.start_process();
  auto file = process->open(kArchivePath, Access::ReadWrite);
  const auto reports = recover(*process, kArchivePath, **file, {.is_dry_run = false, .is_forced = true});
  if (!reports) return "forced: " + text_of(reports.error());
  const DiskImage after = disk.image();
  const Content& expected = has_other_bytes ? archive : valid.archive_after;
  if (after.has_content(after.inode_at(kArchivePath), expected)) return std::nullopt;
  return has_other_bytes ? "forced: applied over bytes that it does not know" : "forced: not applied";
}

/// Nothing is committed beside a damaged journal: it may be a commit that the next recovery can save.
std::optional<std::string> check_damaged_stops_commits() {
  const ValidJournal& valid = valid_journal();
  DiskModel disk;
  const InodeNumber archive = disk.put(kArchivePath, valid.archive_before);
  Content damaged = valid.bytes;
  damaged[valid.record.offset + 3] ^= std::byte{1};
  disk.put(valid.path, damaged);
  const auto process = disk.start_process();
  Writer writer(*process, small_archive(), commit_options(Durability::Power));
  const auto committed = writer.run({.pieces = {{"right"}}}, 1);
  if (committed) return "a commit beside a damaged journal was taken";
  if (!disk.image().has_content(archive, valid.archive_before))
    return "a refused commit has changed the archive";
  return std::nullopt;
}

/// Nothing is committed beside a journal that this user cannot read.
std::optional<std::string> check_unreadable_stops_commits() {
  const ValidJournal& valid = valid_journal();
  DiskModel disk;
  const DiskAccess theirs{.uid = 1000, .gid = 200, .permissions = 0660};
  const InodeNumber archive = disk.put(kArchivePath, valid.archive_before, theirs);
  disk.put(valid.path, valid.bytes, {.uid = 1001, .gid = 101, .permissions = 0600});
  const auto process = disk.start_process({.uid = 1000, .gid = 100, .groups = {200}});
  Writer writer(*process, small_archive(), commit_options(Durability::Power));
  if (writer.run({.pieces = {{"right"}}}, 1)) return "a commit beside a journal that can't be read was taken";
  const DiskImage after = disk.image();
  if (!after.has_content(archive, valid.archive_before)) return "a refused commit has changed the archive";
  if (after.inode_at(valid.path) == 0) return "a journal that can't be read was removed";
  return std::nullopt;
}

enum class Replacement : std::uint8_t { OtherFile, NoFile, OtherHeader, OtherSize };

/// The archive is replaced or changed between the staging and the commit.
std::optional<std::string> check_replaced(Replacement replacement) {
  DiskModel disk;
  const InodeNumber first = disk.put(kArchivePath, small_archive().content());
  const auto process = disk.start_process();
  auto archive = Archive::open(kArchivePath, Access::ReadWrite, *process);
  if (!archive) return text_of(archive.error());
  Transaction transaction(**archive);
  auto staging = transaction.stage(TensorId{small_archive().position("block")});
  if (auto written = (*staging)->write(Content(10, std::byte{1}), 0); !written)
    return text_of(written.error());

  Content other = small_archive().content();
  const auto outside = disk.start_process();
  if (replacement == Replacement::OtherHeader || replacement == Replacement::OtherSize) {
    auto file = outside->open(kArchivePath, Access::ReadWrite);
    const std::uint64_t at = replacement == Replacement::OtherSize ? other.size() : 10;
    static_cast<void>((*file)->write(Content(1, std::byte{'X'}), at));
    other.resize(std::max<std::uint64_t>(other.size(), at + 1));
    other[at] = std::byte{'X'};
  } else {
    static_cast<void>(outside->remove(kArchivePath));
    if (replacement == Replacement::OtherFile) disk.put(kArchivePath, other);
  }
  ReaderWriterLock readers;
  const auto committed = transaction.commit(commit_options(Durability::Power),
                                            [&](TensorId) -> ReaderWriterLock& { return readers; });
  const std::string name =
      "replaced before the commit (" + std::to_string(static_cast<int>(replacement)) + "): ";
  if (committed) return name + "the commit was taken";
  if (committed.error().code != ErrorCode::ArchiveChanged &&
      committed.error().code != ErrorCode::ArchiveCut) {
    return name + text_of(committed.error());
  }
  const DiskImage after = disk.image();
  const InodeNumber now = after.inode_at(kArchivePath);
  if (now != 0 && !after.has_content(now, other)) return name + "what lies at the path was written to";
  if (now != first && !after.has_content(first, small_archive().content()))
    return name + "the old file was written to";
  if (!process->list(kDirectory, ".")->empty()) return name + "a journal was left";
  return std::nullopt;
}

}  // namespace

std::optional<std::string> check_identities() {
  const Content& same = valid_journal().archive_before;
  Content other_header = same;
  other_header[1500] = std::byte{'\n'};  // other white space: a header with the same meaning
  Content longer = same;
  longer.push_back(std::byte{0});
  if (auto wrong = check_foreign("a copy under the name", same, true, {})) return wrong;
  if (auto wrong = check_foreign("another header", other_header, false, {})) return wrong;
  if (auto wrong = check_foreign("another size", longer, false, {})) return wrong;
  if (auto wrong = check_foreign_file("another inode of the same birth", 2, 0)) return wrong;
  if (auto wrong = check_foreign_file("the same inode, born again", 1, 1)) return wrong;
  // Without birth times the blocks decide, because device and inode numbers mean nothing on another host.
  DiskOptions no_birth;
  no_birth.has_birth_times = false;
  DiskOptions other_disk = no_birth;
  other_disk.device = 2;
  Content other_block = same;
  const std::uint64_t at = round_down_to_block(small_archive()["block"].offset);
  std::fill_n(other_block.begin() + static_cast<std::ptrdiff_t>(at), kBlockBytes, std::byte{'?'});
  for (const ValidJournal* journal : {&valid_journal(), &valid_journal_without_birth()}) {
    for (const DiskOptions& disk : {no_birth, other_disk}) {
      if (auto wrong = check_known("without birth times", disk, *journal)) return wrong;
      const Content& archive = journal->archive_before;
      if (auto wrong = check_foreign("a copy, without birth times", archive, true, disk, *journal,
                                     JournalState::Unknown))
        return wrong;
      if (auto wrong = check_foreign("other blocks, without birth times", other_block, false, disk, *journal))
        return wrong;
    }
  }
  for (const std::uint64_t other_byte : {std::uint64_t{0}, small_archive()["block"].offset + 7}) {
    if (auto wrong = check_forced(valid_journal(), other_byte)) return wrong;
  }
  const ValidJournal& with_old = valid_journal_with_old_blocks();
  if (with_old_blocks(with_old) != 1) return "the old blocks are not in the journal";
  for (const std::uint64_t other_byte : {std::uint64_t{0}, large_archive()["large"].offset + 99'999}) {
    if (auto wrong = check_forced(with_old, other_byte)) return wrong;
  }
  if (auto wrong = check_damaged_stops_commits()) return wrong;
  if (auto wrong = check_unreadable_stops_commits()) return wrong;
  for (const auto replacement :
       {Replacement::OtherFile, Replacement::NoFile, Replacement::OtherHeader, Replacement::OtherSize}) {
    if (auto wrong = check_replaced(replacement)) return wrong;
  }
  return std::nullopt;
}

}  // namespace stfs::test
