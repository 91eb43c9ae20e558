// What the user named: an archive, a sharded model, or a path inside a mount of one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.h"
#include "core/model.h"
#include "tools/verb.h"

namespace stfs::tools {

/// Value of an extended attribute of a path that lies in a FUSE file system, or nothing.
using AttributeReader =
    std::function<std::optional<std::string>(const std::filesystem::path& path, const char* name)>;

/// Asks the kernel. Attributes of other file systems don't count: `cp -a` out of a mount copies them,
/// and the copy is no longer the tensor.
std::optional<std::string> read_mount_attribute(const std::filesystem::path& path, const char* name);

struct Target {
  std::unique_ptr<Model> model;
  /// Position of the tensor whose file in a mount was named; nothing where the whole model was.
  std::optional<std::uint32_t> tensor;
};

/// Where the archive or the index lies that the user named, and the tensor whose file in a mount was named.
struct TargetPath {
  std::filesystem::path archive;
  std::optional<std::string> tensor;
};

/// Finds the archive without opening it. The message of a failure, here and below, starts with the path
/// as named and tells a missing file, a directory, a special file and a file that is no archive apart.
Result<TargetPath> locate_target(const std::filesystem::path& named,
                                 const AttributeReader& attributes = read_mount_attribute);

/// Opens what the user named. ReadWrite is refused (EROFS) for a path inside a read-only mount, though
/// the archive behind it might be writable: whoever mounted it so has said what he wants.
Result<Target> open_target(const std::filesystem::path& named,
                           const AttributeReader& attributes = read_mount_attribute,
                           Access access = Access::ReadOnly, Storage& storage = system_storage());
Result<Target> open_target(const std::filesystem::path& named, const AttributeReader& attributes,
                           const ModelOptions& options);

/// Position of the tensor of that exact name; the message of NotFound suggests near ones.
Result<std::uint32_t> find_tensor(const Model& model, const std::filesystem::path& named,
                                  const std::string& name);

/// Names what an index and its shards disagree on. @return kFailed then, else kDone.
int report_problems(Streams& streams, std::string_view verb, const Model& model);

}  // namespace stfs::tools
