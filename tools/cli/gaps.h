// Closes the gaps that an edit has left in its archives, and reports the fillers that stay.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/commit/commit_options.h"
#include "core/model/model.h"
#include "tools/cli/verb.h"

namespace stfs::tools {

/// The space of deleted tensors after an edit.
struct LeftSpace {
  std::uint64_t moved_bytes = 0;   // to close gaps
  std::uint64_t filler_bytes = 0;  // of fillers that stay
};

/// Moves tensors into the gaps of these shards if that is cheap (core/commit/compaction_moves.h), with
/// progress on a terminal. The edit is done: any failure here leaves fillers, and is reported with the
/// command that removes them. After this call the model may be used for names, dtypes and shapes, but not for
/// the bytes of tensors.
/// @param keeps_space  closes no gap, and only reports.
LeftSpace close_gaps(const Model& model, const std::vector<std::uint32_t>& shards, bool keeps_space,
                     const CommitOptions& options, Streams& streams);

/// Reports that fillers stay, with the reason.
void report_fillers(const std::string& path, std::uint64_t filler_bytes, std::string_view why,
                    Streams& streams);

}  // namespace stfs::tools
