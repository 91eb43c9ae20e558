// What the user named: an archive, a sharded model, or a path inside a mount of one.
//
// A mount shows one tensor in several files. This table is the one place that says what each file means; all
// verbs, uploads, libstfs and the Python module ask it.
//
//   named, in a mount           | Use::Model     | Use::Bytes | Use::Tensors          | Use::Change
//                               | info, recover  | cat        | ls, slice, verify,    | put, apply
//                               |                |            | upload, serve, DELTA, |
//                               |                |            | --from-tensor,        |
//                               |                |            | stfs_open, stfs.open  |
//   ----------------------------+----------------+------------+-----------------------+------------------
//   the root                    | the model      | the model  | the model             | the model
//   a tensor's own file         | its archive    | the tensor | the tensor            | the tensor
//   archive.safetensors         | the model      | the model  | the model             | name the root
//   npy/ float32/ slice/        | its archive    | the file   | name the own file     | name the own file
//   header.json and others      | the model      | the file   | name the root         | name the root
//   transactions/T/NAME         | its archive    | the file   | name the own file     | name the own file
//   any other directory         | name the root  | name the root | name the root      | name the root
//
// "The file" is the bytes that cat(1) prints. "Name ..." is a refusal whose message has that path. The kind
// of a file is its attribute user.safetensors.view, so links and bind mounts into a mount mean the same.
//
// Outside of a mount a directory is its one index, else its one archive; `upload` and `serve` take all of its
// archives.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/model/model.h"

namespace stfs::tools {

/// Value of an extended attribute of a path that lies in a FUSE file system, or nothing.
using AttributeReader =
    std::function<std::optional<std::string>(const std::filesystem::path& path, const char* name)>;

/// Asks the kernel. Attributes of other file systems don't count: `cp -a` out of a mount copies them,
/// and the copy is no longer the tensor.
std::optional<std::string> read_mount_attribute(const std::filesystem::path& path, const char* name);

/// What the caller does with what was named: a column of the table above.
enum class Use : std::uint8_t { Model, Bytes, Tensors, Change };

struct Target {
  std::unique_ptr<Model> model{};  // null where there is a view
  /// Position of the tensor whose file in a mount was named; nothing where the whole model was.
  std::optional<std::uint32_t> tensor{};
  /// With Use::Bytes alone: the bytes of this file are meant.
  std::optional<std::filesystem::path> view{};
};

/// Where the archive or the index lies that the user named, and the tensor or the view whose file in a mount
/// was named.
struct TargetPath {
  std::filesystem::path archive;
  std::optional<std::string> tensor{};
  std::optional<std::filesystem::path> view{};
  bool is_mounted = false;
};

/// Finds the archive without opening it. The message of a failure, here and below, starts with the path
/// as named and tells a missing file, a directory, a special file and a file that is no archive apart.
/// A refusal by the table is EINVAL, or EROFS with Use::Change.
Result<TargetPath> locate_target(const std::filesystem::path& named, Use use,
                                 const AttributeReader& attributes = read_mount_attribute);
/// The same, and of a directory of several archives each of them, in order of their names.
Result<std::vector<TargetPath>> locate_targets(const std::filesystem::path& named, Use use,
                                               const AttributeReader& attributes = read_mount_attribute);

/// Opens what the user named. ReadWrite is refused (EROFS) for a path inside a read-only mount, though
/// the archive behind it might be writable: whoever mounted it so has said what he wants.
Result<Target> open_target(const std::filesystem::path& named, Use use, const ModelOptions& options = {},
                           const AttributeReader& attributes = read_mount_attribute);
/// Opens what locate_target() or locate_targets() has found for `named`.
Result<Target> open_located(const TargetPath& path, const std::filesystem::path& named,
                            const ModelOptions& options = {});

/// Position of the tensor of that exact name; the message of NotFound suggests near ones.
Result<std::uint32_t> find_tensor(const Model& model, const std::filesystem::path& named,
                                  const std::string& name);

}  // namespace stfs::tools
