// Reads the lanes of another process's lane journal (lane_journal.h).
#pragma once

#include <vector>

#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"

namespace stfs {

/// Reads a file of kLaneJournalBytes. Returns the records whose head, or the head's copy, is sound; latest
/// first. Their new blocks may be torn. EPROTONOSUPPORT: this program does not know the version of a lane.
Result<std::vector<JournalRecord>> read_lanes(const File& file);

/// Returns the lane that holds the record.
std::size_t lane_of(const JournalRecord& record);

/// The state of a dead owner's lane.
enum class LaneVerdict : std::uint8_t {
  /// Record and new blocks agree: this is the last commit, or one whose sync was never finished. Recovery may
  /// apply either.
  Sound,
  Torn,     // the sync was never finished: the archive has only the old blocks
  Damaged,  // new blocks do not agree with the record, and the archive's blocks are not all old
};
Result<LaneVerdict> judge_lane(const File& file, const JournalRecord& record, const File& archive);

}  // namespace stfs
