// Resolves the path that the user named: an archive, a sharded model, or a path inside a mount of one.
//
// A mount shows one tensor in several files. Only this table defines the meaning of each file. All verbs,
// uploads, libstfs and the Python module use it.
//
//   named, in a mount           | Use::Model     | Use::Bytes | Use::Tensors          | Use::Change
//                               | info, recover  | cat        | ls, slice, verify,    | put, apply
//                               |                |            | diff, upload, serve,  |
//                               |                |            | DELTA, --from-tensor, |
//                               |                |            | stfs_model_open(),    |
//                               |                |            | stfs.open()           |
//   ----------------------------+----------------+------------+-----------------------+------------------
//   the root                    | the model      | the model  | the model             | the model
//   a tensor's own file         | its archive    | the tensor | the tensor            | the tensor
//   archive.safetensors,        | the model      | the model  | the model             | name the root
//   pretrained/model.safetensors|                |            |                       |
//   npy/ float32/ slice/        | its archive    | the file   | name the own file     | name the own file
//   header.json and others      | the model      | the file   | name the root         | name the root
//   transactions/T/NAME         | its archive    | the file   | name the own file     | name the own file
//   any other directory         | name the root  | name the root | name the root      | name the root
//
// In a mount of a delta, "the model" is the base with the delta on top, and "its archive" is the base or the
// delta, whichever holds the tensor. recover acts on the base.
//
// "The file" is the bytes that cat(1) prints. "Name ..." is a refusal whose message gives that path. The
// attribute user.safetensors.view has the kind of a file, so links and bind mounts into a mount have the same
// meaning.
//
// Outside of a mount, a directory means its one index, or else its one archive. For `upload` and `serve` it
// means all of its archives. An index that another user may have planted is ignored, and such an archive is
// ignored beside others (core/model/model_directory.h).
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

/// Returns the value of an extended attribute of a path in a FUSE file system, or nothing.
using AttributeReader =
    std::function<std::optional<std::string>(const std::filesystem::path& path, const char* name)>;

/// Asks the kernel. Ignores attributes on other file systems: `cp -a` copies them out of a mount, but the
/// copy is no longer the tensor.
std::optional<std::string> read_mount_attribute(const std::filesystem::path& path, const char* name);

/// The caller's purpose: a column of the table above.
enum class Use : std::uint8_t { Model, Bytes, Tensors, Change };

struct Target {
  std::unique_ptr<Model> model{};  // null if `view` is set
  /// Position of the tensor, if the user named a tensor's file in a mount; nothing if the user named the
  /// model.
  std::optional<std::uint32_t> tensor{};
  /// Set only with Use::Bytes: the caller reads the bytes of this file.
  std::optional<std::filesystem::path> view{};
};

/// The path of the archive or index that the user named. If the user named a tensor's or a view's file in a
/// mount, also this tensor or view.
struct TargetPath {
  std::filesystem::path archive;
  std::vector<std::filesystem::path> deltas{};  // deltas that the mount shows on top
  std::optional<std::string> tensor{};
  std::optional<std::filesystem::path> view{};
  bool is_mounted = false;
};

/// Finds the archive without opening it. The message of a failure, here and below, starts with the path that
/// the user named. The message distinguishes a missing file, a directory, a special file and a file that is
/// no archive. A refusal by the table is EINVAL, or EROFS with Use::Change.
/// @param storage  of the named files; the kernel has the mounts.
Result<TargetPath> locate_target(const std::filesystem::path& named, Use use,
                                 const AttributeReader& attributes = read_mount_attribute,
                                 Storage& storage = system_storage());
/// Does the same. For a directory of several archives it returns each of them, in the order of their names.
Result<std::vector<TargetPath>> locate_targets(const std::filesystem::path& named, Use use,
                                               const AttributeReader& attributes = read_mount_attribute,
                                               Storage& storage = system_storage());

/// Opens the path that the user named, with the deltas of its mount below the options' deltas. ReadWrite
/// fails with EROFS for a path inside a read-only mount, even if the archive behind it is writable: the
/// read-only mount is a deliberate choice.
Result<Target> open_target(const std::filesystem::path& named, Use use, const ModelOptions& options = {},
                           const AttributeReader& attributes = read_mount_attribute);
/// Does the same, but refuses a tensor's own file (EINVAL).
Result<std::unique_ptr<Model>> open_whole(const std::filesystem::path& named, Use use,
                                          const ModelOptions& options = {});
/// Checks a path that a mount has named, before anything is written there. The mount must be one of
/// safetensorsfs, and its user must be root, this user or the owner of the archive: otherwise another user's
/// program could choose the path that this user writes. EACCES. Does nothing for a path outside of mounts.
/// @param owner  of the archive; nothing if it has none yet.
Result<void> check_naming_mount(const TargetPath& path, const std::filesystem::path& named,
                                std::optional<std::uint32_t> owner);
/// Opens a path that locate_target() or locate_targets() has found for `named`. For ReadWrite it fails like
/// check_naming_mount().
Result<Target> open_located(const TargetPath& path, const std::filesystem::path& named,
                            const ModelOptions& options = {});

/// Returns the position of the tensor whose own file the user named; nothing if the user named the model.
/// @return NotFound if the archive of a mount has no such tensor any more.
Result<std::optional<std::uint32_t>> named_tensor(const TargetPath& path, const std::filesystem::path& named,
                                                  const Model& model);
/// Returns the position of the tensor with exactly that name. The message of NotFound suggests similar names.
Result<std::uint32_t> find_tensor(const Model& model, const std::filesystem::path& named,
                                  const std::string& name);
/// Returns the target's own tensor if the user named a tensor's file, else the position of each name.
Result<std::vector<std::uint32_t>> find_tensors(const Target& target, const std::filesystem::path& named,
                                                const std::vector<std::string>& names);

}  // namespace stfs::tools
