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
  std::uint64_t states = 0;       // crashed
  std::uint64_t in_recovery = 0;  // of those, crashed while an earlier crash was being recovered
  std::uint64_t hidden = 0;       // of those, that a plain reader refuses until they are recovered

  EditCounts& operator+=(const EditCounts& other);
};

/// Carries out a sequence that follows from the seed, and crashes at many moments of it. What recovery leaves
/// must be the content before or after the step at hand, and valid. What a plain reader accepts of the file
/// before recovery must be such a content too, unless a patch was on its way.
/// @param lies  calls that the storage pretends to have done.
/// @return what is wrong.
std::optional<std::string> run_edits(std::uint64_t seed, std::uint64_t crashes, EditCounts& counts,
                                     const std::vector<SeamCall>& lies = {});

/// Fails each call of one edit in turn, once or from then on. What is left must be the content before or
/// after it, once recovered; without a recovery too, if there was no room.
std::optional<std::string> fail_edits(std::uint64_t seed, EditCounts& counts);

}  // namespace stfs::test
