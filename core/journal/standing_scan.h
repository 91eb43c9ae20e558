// What the lanes of a standing journal hold (standing_journal.h), found by somebody who is not its owner.
#pragma once

#include <vector>

#include "core/base/error.h"
#include "core/journal/journal_format.h"
#include "core/storage/file.h"

namespace stfs {

/// Of a file of kStandingBytes: the records whose head or its copy is sound, latest first. Their new blocks
/// may be torn. EPROTONOSUPPORT: a lane that this version can't read.
Result<std::vector<JournalRecord>> read_lanes(const File& file);

/// Which lane holds it.
std::size_t lane_of(const JournalRecord& record);

/// What is to be done about the lanes of a dead owner.
enum class LaneVerdict : std::uint8_t {
  Sound,    // record and new blocks agree: the last commit, or one whose sync was never done; both may be
            // applied
  Torn,     // its sync was never done: the archive has only the old blocks
  Damaged,  // new blocks do not agree with it, and the archive has other blocks than the old ones
};
Result<LaneVerdict> judge_lane(const File& file, const JournalRecord& record, const File& archive);

}  // namespace stfs
