#include "tests/crash/journal_check.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "core/journal/journal_format.h"
#include "core/journal/recovery.h"
#include "tests/crash/crash_run.h"
#include "tests/support/journal_mutator.h"
#include "tests/support/plain.h"

namespace stfs::test {
namespace {

/// The moment at which the commit's journal is on the disk and the archive is unchanged.
const Moment& committed_moment(const History& history) {
  const auto published = std::ranges::find(history.moments, "publish", &Moment::what);
  return *std::ranges::find(published, history.moments.end(), "sync directory", &Moment::what);
}

ValidJournal make_valid_journal(Workload made) {
  const History history = record(made);
  const DiskImage image = committed_moment(history).image;
  const auto named = std::ranges::find_if(image.names(), [](const DiskName& name) {
    return name.path.now() && *name.path.now() != kArchivePath;
  });
  ValidJournal journal{.path = *named->path.now(),
                       .bytes = image.content(named->inode),
                       .record = {},
                       .archive_before = history.contents.front(),
                       .archive_after = history.contents.back()};
  const auto head = decode_head(text_of(std::span(journal.bytes).first(kBlockBytes)));
  journal.record = head->record;
  return journal;
}

Workload far_apart(const DiskOptions& disk) {
  Workload made = workload("far apart");
  made.disk = disk;
  return made;
}

struct Recovered {
  bool is_applied = false;
  std::optional<std::string> wrong = {};
};

Recovered recover_once(Storage& storage, const RecoveryOptions& options) {
  auto file = storage.open(kArchivePath, Access::ReadWrite);
  if (!file) return {.wrong = text_of(file.error())};
  const auto reports = recover(storage, kArchivePath, **file, options);
  // Recovery may refuse a journal for any reason, but it must give a message.
  if (!reports)
    return {.wrong =
                reports.error().message.empty() ? std::optional<std::string>("no message") : std::nullopt};
  return {.is_applied = std::ranges::any_of(
              *reports, [](const JournalReport& report) { return report.action == JournalAction::Applied; })};
}

}  // namespace

const ValidJournal& valid_journal() {
  static const ValidJournal journal = make_valid_journal(far_apart({}));
  return journal;
}

const ValidJournal& valid_journal_without_birth() {
  static const ValidJournal journal = make_valid_journal(far_apart({.has_birth_times = false}));
  return journal;
}

const ValidJournal& valid_patches() {
  static const ValidJournal journal = make_valid_journal(workload("patched: everything"));
  return journal;
}

const ValidJournal& valid_journal_with_old_blocks() {
  static const ValidJournal journal = make_valid_journal(workload("cloned"));
  return journal;
}

MadeJournal make_journal(std::span<const std::byte> script) {
  RandomChoices choices(XXH3_64bits(script.data(), script.size()));
  MadeJournal made{valid_journal().bytes};
  made.is_forged = mutate_journal(made.bytes, false, valid_journal().archive_before, choices);
  return made;
}

std::optional<std::string> check_journal(std::span<const std::byte> journal, bool is_forged,
                                         const ValidJournal& valid) {
  DiskModel disk;
  const InodeNumber archive = disk.put(kArchivePath, valid.archive_before);
  disk.put(valid.path, journal);
  const auto process = disk.start_process();

  const Recovered looked = recover_once(*process, {.is_dry_run = true, .is_forced = true});
  if (looked.wrong) return "looking: " + *looked.wrong;
  if (!disk.image().has_content(archive, valid.archive_before)) return "looking has changed the archive";
  {
    const auto reader = Archive::open(kArchivePath, Access::ReadOnly, *process);
    std::vector<std::byte> scratch;
    if (reader && !is_forged) {
      const auto read = (*reader)->read({0, valid.archive_before.size()}, scratch);
      if (!read) return "a reader can't read: " + text_of(read.error());
      const Content seen(read->begin(), read->end());
      if (seen != valid.archive_before && seen != valid.archive_after)
        return "a reader sees what was never there";
    } else if (!reader && !is_forged) {
      return "a reader can't open: " + text_of(reader.error());
    }
    if (!disk.image().has_content(archive, valid.archive_before)) return "a reader has changed the archive";
  }
  const Recovered done = recover_once(*process, {});
  if (done.wrong) return "recovering: " + *done.wrong;
  const DiskImage after = disk.image();
  const bool is_untouched = after.has_content(archive, valid.archive_before);
  if (!done.is_applied && !is_untouched)
    return "the archive is another one, by a journal that was not applied";
  if (after.size_bytes(archive) != valid.archive_before.size()) return "the archive's size is another one";
  if (!is_forged && !is_untouched && !after.has_content(archive, valid.archive_after)) {
    return "a damaged journal was applied";
  }
  if (recover_once(*process, {}).is_applied) return "applied twice";
  return std::nullopt;
}

std::optional<std::string> check_every_byte() {
  for (const ValidJournal* valid : {&valid_journal(), &valid_patches()}) {
    Content journal = valid->bytes;
    for (std::size_t at = 0; at < journal.size(); ++at) {
      const bool has_sense = at < 100 || at >= valid->record.offset;
      if (!has_sense && at % 97 != 0) continue;
      const std::byte before = journal[at];
      journal[at] ^= std::byte{0x10};
      if (auto wrong = check_journal(journal, false, *valid))
        return "byte " + std::to_string(at) + ": " + *wrong;
      journal[at] = before;
    }
  }
  return std::nullopt;
}

std::optional<std::string> check_forged_records() {
  using Forge = void (*)(JournalRecord & record);
  const std::pair<std::string_view, Forge> cases[] = {
      {"past the archive's end",
       [](JournalRecord& record) {
         std::uint64_t& size_bytes = record.ranges.back().archive.size_bytes;
         size_bytes = round_up_to_block(size_bytes);
       }},
      {"far past the archive's end",
       [](JournalRecord& record) { record.ranges.back().archive.offset = 1U << 20U; }},
      {"past the end of numbers",
       [](JournalRecord& record) { record.ranges.back().archive.offset = UINT64_MAX - kBlockBytes + 1; }},
      {"not at a block", [](JournalRecord& record) { record.ranges.front().archive.offset += 512; }},
      {"one over the other",
       [](JournalRecord& record) { record.ranges[1].archive.offset = record.ranges[0].archive.offset; }},
      {"descending", [](JournalRecord& record) { std::swap(record.ranges[0], record.ranges[1]); }},
      {"from behind the journal's end",
       [](JournalRecord& record) { record.ranges[0].journal_offset = 1U << 24U; }},
      {"of an archive of another size",
       [](JournalRecord& record) { record.archive.size_bytes += kBlockBytes; }},
      {"waiting for a group record", [](JournalRecord& record) { record.group_record = "../somewhere"; }},
  };
  const ValidJournal& valid = valid_journal();
  for (const auto& [name, forge] : cases) {
    const auto place = std::span(valid.bytes).subspan(valid.record.offset, valid.record.size_bytes);
    auto record = decode_record(text_of(place), valid.bytes.size());
    if (!record) return "the valid record can't be read: " + text_of(record.error());
    forge(*record);
    Content journal = valid.bytes;
    for (JournalRange& range : record->ranges) {
      // The hashes fit the bytes at the new place, so only the place is wrong.
      if (range.journal_offset + range.archive.size_bytes > journal.size()) continue;
      range.new_hashes.clear();
      append_block_hashes(std::span(journal).subspan(range.journal_offset, range.archive.size_bytes),
                          range.new_hashes);
    }
    const std::string bytes = encode_record(*record);
    journal.resize(valid.record.offset + bytes.size());
    std::memcpy(journal.data() + valid.record.offset, bytes.data(), bytes.size());
    const JournalHead head{.id = record->id,
                           .record = {valid.record.offset, bytes.size()},
                           .record_hash = XXH3_64bits(bytes.data(), bytes.size()),
                           .boot = {}};
    const std::string block = encode_head(head);
    std::memcpy(journal.data(), block.data(), block.size());
    DiskModel disk;
    const InodeNumber archive = disk.put(kArchivePath, valid.archive_before);
    disk.put(valid.path, journal);
    const auto process = disk.start_process();
    const Recovered done = recover_once(*process, {.is_dry_run = false, .is_forced = true});
    if (done.wrong || done.is_applied || !disk.image().has_content(archive, valid.archive_before)) {
      return "a record " + std::string(name) + " was applied";
    }
  }
  return std::nullopt;
}

}  // namespace stfs::test
