// What the user named: an archive, or a path inside a mount of one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/archive.h"
#include "core/error.h"

namespace stfs::tools {

/// Value of an extended attribute of a path that lies in a FUSE file system, or nothing.
using AttributeReader =
    std::function<std::optional<std::string>(const std::filesystem::path& path, const char* name)>;

/// Asks the kernel. Attributes of other file systems don't count: `cp -a` out of a mount copies them,
/// and the copy is no longer the tensor.
std::optional<std::string> read_mount_attribute(const std::filesystem::path& path, const char* name);

struct Target {
  std::unique_ptr<Archive> archive;
  /// Position of the tensor whose file in a mount was named; nothing where the whole archive was.
  std::optional<std::uint32_t> tensor;
};

/// Opens what the user named, for reading. The message of a failure starts with the path as named and
/// tells a missing file, a directory, a special file and a file that is no archive apart.
Result<Target> open_target(const std::filesystem::path& named,
                           const AttributeReader& attributes = read_mount_attribute);

}  // namespace stfs::tools
