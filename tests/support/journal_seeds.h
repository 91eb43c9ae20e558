// Journals to begin with, and the archive beside which they lie.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/journal/journal_format.h"
#include "tests/support/mutator.h"

namespace stfs::test {

/// The archive that fuzzed journals belong to, and what they must say to belong to it.
struct JournalScene {
  Bytes archive;
  ArchiveStamp stamp;
};
/// The first file of a MemoryStorage.
const JournalScene& journal_scene();

/// A good journal of each kind, and those that a crash, another archive or a transaction over several leave.
struct JournalSeed {
  std::string name;
  bool is_lane_journal = false;
  Bytes bytes;
  /// It waits for the group record of this name.
  bool is_part = false;
};
const std::vector<JournalSeed>& journal_seeds();

inline constexpr std::string_view kGroupRecordName =
    ".first.safetensors.stj.00112233445566778899aabbccddeeff.group";

}  // namespace stfs::test
