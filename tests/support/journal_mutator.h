// Journals that are nearly right: fields changed where they lie, records written anew with other ranges,
// bytes damaged, and then as many of the hashes made to agree again as it takes to get past them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "tests/support/mutator.h"

namespace stfs::test {

/// Changes a journal, and then makes hashes agree: of nothing, of record and head, of the new blocks too, of
/// the old ones too.
/// @return whether any was.
bool mutate_journal(Bytes& journal, bool is_lane_journal, std::span<const std::byte> archive,
                    Choices& choices);

/// A group record that names that journal, or nearly.
Bytes make_group_record(const std::string& journal_name, Choices& choices);

}  // namespace stfs::test
