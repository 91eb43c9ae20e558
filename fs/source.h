// What the user asked to mount.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/model.h"
#include "fs/forest.h"

namespace stfs {

struct Source {
  struct Member {
    std::string name;  // of its directory in the mount; empty where the mount shows nothing else
    std::unique_ptr<Model> model;
  };
  std::filesystem::path path;   // absolute, for the kernel's table of mounts and the log
  std::vector<Member> members;  // at least one
  /// Of a directory of archives: those that can't be opened.
  std::vector<Forest::Absent> absent;

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

}  // namespace stfs
