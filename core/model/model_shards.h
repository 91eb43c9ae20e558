// The shards of a model, opened several at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/error.h"
#include "core/storage/file.h"

namespace stfs {

/// Move-only; owns its archive.
struct Shard {
  /// As the index names it, in the directory of the index: links are not resolved.
  std::filesystem::path path;
  /// Null where it could not be opened; `failure` says why then.
  std::unique_ptr<Archive> archive{};
  std::optional<Error> failure{};
  /// What lay at the path before it was opened, if anything.
  std::optional<FileIdentity> before{};
};

/// Opens each name in the directory. A link there is followed wherever it leads. A shard that is missing,
/// invalid, a loop of links, or the same file as one before it comes back with its failure. The whole fails
/// where that says nothing of the shard: too many open files, no memory, and, for ReadWrite, a file that may
/// not be written (EACCES, EPERM, EROFS, ETXTBSY: the caller decides whether to try ReadOnly then).
Result<std::vector<Shard>> open_shards(const std::filesystem::path& directory,
                                       std::span<const std::string> names, Access access, Storage& storage,
                                       Io io);

/// Of the file at that path, with its time; nothing where none can be opened.
std::optional<FileIdentity> identity_at(const std::filesystem::path& path, Storage& storage);

/// The file was found, but may not be written by us.
bool is_refusal_to_write(const Error& error);

}  // namespace stfs
