// Judges the bytes of a journal by the text of core/journal/journal_format.h and core/journal/journal_scan.h,
// without their code. The fuzzers compare recovery with this second implementation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/journal/journal_format.h"
#include "core/journal/journal_scan.h"
#include "tests/support/mutator.h"
#include "tests/support/plain_record.h"

namespace stfs::test {

/// The surroundings of a journal whose owner is dead.
struct JournalSetting {
  std::span<const std::byte> archive;
  ArchiveStamp stamp;
  bool is_lane_journal = false;
  bool is_forced = false;
  std::string name = {};
  /// The present boot.
  Boot boot = {.id = {1}, .host = 1};
  /// The group record in the same directory; nothing if there is none.
  std::string group_record_name = {};
  std::optional<std::span<const std::byte>> group_record = {};
};

struct JournalVerdict {
  JournalState state = JournalState::Unknown;
  bool blocks_commits = false;
  /// The archive after recovery has applied the journal; nothing if recovery must not apply it.
  std::optional<Bytes> after = {};
  /// A group record commits the journal. Recovery removes the group record with the last of its journals.
  bool is_part = false;
};
JournalVerdict judge_journal(std::span<const std::byte> journal, const JournalSetting& setting);

}  // namespace stfs::test
