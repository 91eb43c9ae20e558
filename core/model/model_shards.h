// Opens the shards of a model, several at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/error.h"
#include "core/storage/file.h"

namespace stfs {

struct ModelOptions;

/// A shard of a model. The models before and after an edit share its archive (Model::next()).
struct Shard {
  void adopt(std::shared_ptr<Archive> opened) {
    version = opened->version();
    archive = std::move(opened);
  }

  /// The index's directory and the name from the index. Links are not resolved.
  std::filesystem::path path;
  /// Null if the shard could not be opened; `failure` then has the reason.
  std::shared_ptr<Archive> archive{};
  /// The archive's version at opening, pinned. Positions of tensors are positions in this version.
  std::shared_ptr<const ArchiveVersion> version{};
  std::optional<Error> failure{};
  /// The file at the path before the shard was opened, if any.
  std::optional<FileIdentity> before{};
};

/// Opens each name in the directory, and follows links wherever they lead. A shard that is missing, invalid,
/// a loop of links, or the same file as an earlier shard is returned with its failure. A file with many names
/// is opened once. The whole call fails for reasons that concern this process: too many open files, no
/// memory, and, for ReadWrite, a file that may not be written (EACCES, EPERM, EROFS, ETXTBSY: the caller may
/// try ReadOnly then).
Result<std::vector<Shard>> open_shards(const std::filesystem::path& directory,
                                       std::span<const std::string> names, const ModelOptions& options);

/// Returns the identity of the file at the path, with its mtime; nothing if the file can't be opened.
std::optional<FileIdentity> identity_at(const std::filesystem::path& path, Storage& storage);

/// Returns true if the file exists, but this process may not write it.
bool is_refusal_to_write(const Error& error);

}  // namespace stfs
