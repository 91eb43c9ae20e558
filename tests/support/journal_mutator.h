// Makes nearly right journals: changes fields in place, rewrites records with other ranges and damages bytes,
// then repairs some of the hashes, so that recovery gets past the checks of these hashes.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "tests/support/mutator.h"

namespace stfs::test {

/// Changes a journal, then repairs no hashes, the hashes of record and head, also the new blocks' hashes, or
/// also the old blocks' hashes.
/// @return whether it repaired hashes.
bool mutate_journal(Bytes& journal, bool is_lane_journal, std::span<const std::byte> archive,
                    Choices& choices);

/// A group record that names that journal, or a nearly right one.
Bytes make_group_record(const std::string& journal_name, Choices& choices);

}  // namespace stfs::test
