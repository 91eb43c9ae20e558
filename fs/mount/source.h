// Opens the source that the user wants to mount: one model, or a directory of models.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/model/model.h"

namespace stfs {

struct Source {
  struct Member {
    std::string name;  // the name of its directory in the mount; empty for the mount's only model
    std::filesystem::path path;
    std::unique_ptr<Model> model{};  // null if it cannot be opened
    std::optional<Error> why_absent{};
  };
  std::filesystem::path path;   // absolute, for the kernel's table of mounts and the log
  std::vector<Member> members;  // at least one has a model

  [[nodiscard]] bool is_directory_of_models() const { return !members.front().name.empty(); }
};

struct SourceOptions {
  bool is_read_only = false;
  bool is_strict = false;  // -o strict
  Io io = Io::Auto;        // -o io=
  /// -o delta=: absolute paths, each on top of the earlier ones. Only the last delta is ever written to.
  std::vector<std::filesystem::path> deltas{};
  /// Makes the last delta, without changes, if it does not exist. Not for a read-only mount.
  bool makes_delta = false;
  /// Waits until no other process is in the middle of a commit, so that the model shows one version of each
  /// tensor (core/model/settled_model.h). Only for a read-only mount.
  bool must_be_settled = false;
  /// The deadline of waits for other processes, for all models together. Then EBUSY. Nothing: kEditPatience.
  std::optional<Deadline> wait_until{};
  /// Returns true if a long check of a base, or that wait, must end. Null: never.
  std::function<bool()> is_ending{};
};

/// Deltas need a single model. A base is refused if it does not have the bytes that a delta was made for. The
/// log says when the base must be read for this check.
///
/// Opens an archive, an index, a directory with one index (its model), or a directory without an index (all
/// of its archives). Opens each model for writing if this is allowed, otherwise for reading. The log says why
/// a model is read-only, and names its problems. ENOENT for a directory without archives; EINVAL, with their
/// names, for several indexes; E2BIG for more archives than a mount can show. An index of the directory that
/// another user may have planted is ignored, and the log names it (core/model/model_directory.h).
Result<Source> open_source(const std::filesystem::path& source, const SourceOptions& options);

/// Opens a single model in the same way.
/// @param path  a member's path.
Result<std::unique_ptr<Model>> open_model(const std::filesystem::path& path, const SourceOptions& options);

}  // namespace stfs
