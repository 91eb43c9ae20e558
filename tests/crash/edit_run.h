// A sequence of edits and patches on the disk model, crashed at random moments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/intercepted_storage.h"

namespace stfs::test {

struct EditCounts {
  std::uint64_t steps = 0;
  std::uint64_t states = 0;       // after a crash
  std::uint64_t in_recovery = 0;  // of these, after a crash during the recovery of an earlier crash
  std::uint64_t hidden = 0;       // of these, states that a plain reader refuses until they are recovered

  EditCounts& operator+=(const EditCounts& other);
};

/// Carries out a sequence that follows from the seed, and crashes at many of its moments. Recovery must leave
/// a valid archive with the content before or after the present step. If a plain reader accepts the file
/// before recovery, the file must have one of these contents, unless the step is a patch.
/// @param lies  calls that the storage pretends to have done.
/// @return the mistake, if any.
std::optional<std::string> run_edits(std::uint64_t seed, std::uint64_t crashes, EditCounts& counts,
                                     const std::vector<SeamCall>& lies = {});

/// Fails each call of one edit in turn, once or from then on. After recovery the archive must have the
/// content before or after the edit; after a lack of disk space it must have that even without a recovery.
std::optional<std::string> fail_edits(std::uint64_t seed, EditCounts& counts);

}  // namespace stfs::test
