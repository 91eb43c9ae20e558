// What a journal's bytes allow, told by the text of core/journal/journal_format.h and
// core/journal/journal_scan.h and without their code: a second opinion for the fuzzers, which compare
// recovery with it.
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

/// What lies around a journal whose owner is dead.
struct JournalSetting {
  std::span<const std::byte> archive;
  ArchiveStamp stamp;
  bool is_lane_journal = false;
  bool is_forced = false;
  std::string name = {};
  /// That runs now.
  Boot boot = {.id = {1}, .host = 1};
  /// In the same directory; nothing where there is none.
  std::string group_record_name = {};
  std::optional<std::span<const std::byte>> group_record = {};
};

struct JournalVerdict {
  JournalState state = JournalState::Unknown;
  bool blocks_commits = false;
  /// The archive after a recovery that has to apply the journal.
  std::optional<Bytes> after = {};
  /// It is committed by the group record, which goes with the last of its journals.
  bool is_part = false;
};
JournalVerdict judge_journal(std::span<const std::byte> journal, const JournalSetting& setting);

}  // namespace stfs::test
