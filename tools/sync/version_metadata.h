// The metadata of a published version's index.
#pragma once

#include <optional>
#include <string_view>

#include "core/base/error.h"
#include "tools/sync/checksum_format.h"
#include "tools/sync/diff_encoding.h"
#include "tools/sync/version_name.h"

namespace stfs::sync {

struct VersionMetadata {
  std::optional<VersionNumber> version{};
  std::optional<VersionNumber> base_version{};
  /// Nothing: the index is that of a full checkpoint, and has no other member but perhaps the version.
  std::optional<DiffEncoding> encoding{};
  ChecksumFormat checksum_format = ChecksumFormat::Xxh3_128;
};

/// Whether the text is the beginning of a JSON text, or lacks its bytes: a file whose name is there before
/// its content.
bool is_cut_short(std::string_view json);

/// Reads metadata of an index. Ignores unknown members. An index with delta_encoding must have all members
/// of version_writer.h's, and base_version must be smaller than version.
/// @param json  any text.
/// @return EINVAL if the text is no JSON object, or with the member, what was found, and what was expected;
///   EOPNOTSUPP as parse_checksum_format().
Result<VersionMetadata> parse_version_metadata(std::string_view json);

}  // namespace stfs::sync
