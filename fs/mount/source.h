// What the user asked to mount.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/model/model.h"

namespace stfs {

struct Source {
  struct Member {
    std::string name;  // of its directory in the mount; empty where the mount shows nothing else
    std::filesystem::path path;
    std::unique_ptr<Model> model{};  // null where it can't be opened
    std::optional<Error> why_absent{};
  };
  std::filesystem::path path;   // absolute, for the kernel's table of mounts and the log
  std::vector<Member> members;  // one at least has a model

  [[nodiscard]] bool is_directory_of_models() const { return !members.front().name.empty(); }
};

struct SourceOptions {
  bool is_read_only = false;
  bool is_strict = false;  // -o strict
  Io io = Io::Auto;        // -o io=
};

/// Opens an archive, an index, a directory with one index (its model), or a directory without (each of its
/// archives). Each model for writing where that is allowed, else for reading; says in the log which and why,
/// and what is wrong with it. A directory of nothing is ENOENT, one of several indexes EINVAL with their
/// names; of more archives than a mount can show, E2BIG.
Result<Source> open_source(const std::filesystem::path& source, const SourceOptions& options);

/// The same of a single model.
/// @param path  as a member has it.
Result<std::unique_ptr<Model>> open_model(const std::filesystem::path& path, const SourceOptions& options);

}  // namespace stfs
