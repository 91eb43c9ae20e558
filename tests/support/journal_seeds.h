// Journals from which the fuzzers start, and the archive beside them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/journal/journal_format.h"
#include "tests/support/mutator.h"

namespace stfs::test {

/// The archive of the fuzzed journals, and the stamp that their records must have.
struct JournalScene {
  Bytes archive;
  ArchiveStamp stamp;
};
/// The stamp fits the first file of a MemoryStorage.
const JournalScene& journal_scene();

/// Sound journals of each kind, journals after a crash, journals of another archive, and journals of a
/// transaction over several archives.
struct JournalSeed {
  std::string name;
  bool is_lane_journal = false;
  Bytes bytes;
  /// The journal waits for the group record kGroupRecordName.
  bool is_part = false;
};
const std::vector<JournalSeed>& journal_seeds();

inline constexpr std::string_view kGroupRecordName =
    ".first.safetensors.stj.00112233445566778899aabbccddeeff.group";

}  // namespace stfs::test
