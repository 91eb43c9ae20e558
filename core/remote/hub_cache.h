// The Hugging Face cache: the directory in which the Hub's own library keeps models.
//
//     models--ORG--MODEL/blobs/DIGEST              the files
//     models--ORG--MODEL/refs/REVISION             the commit of a revision
//     models--ORG--MODEL/snapshots/COMMIT/PATH     a link to the file's blob
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "core/remote/hub.h"

namespace stfs {

/// Returns the directory of the Hub's own library, which has the cache and the token.
std::filesystem::path hub_home();

/// Returns true if the text has the form of a commit: 40 hexadecimal digits.
bool is_commit(std::string_view text);
/// Returns true if the text has the form of a digest: 40 or 64 hexadecimal digits.
bool is_digest(std::string_view text);

/// Fills in the commit and the files of a model, from the links in the cache.
/// @return ENETUNREACH: the cache does not have the commit, or another user may write the cache's directory
///   or a directory of the model.
Result<void> find_in_hub_snapshots(const HubName& name, HubModel& model);

/// Opens a file in the cache that has the size and, by its name, the digest. Nothing if there is none, or if
/// another user may have written it.
std::optional<UniqueFd> find_in_hub_cache(const HubModel& model, const HubModel::File& file);

}  // namespace stfs
