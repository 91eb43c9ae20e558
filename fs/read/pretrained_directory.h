// `.safetensors/pretrained/`: the directory of the archive or index, with the model as the mount shows it. A
// library that loads a directory, as from_pretrained() does, loads the model with its deltas and shards
// merged.
//
//   model.safetensors   the file archive.safetensors of `.safetensors`: the same inode, so one page cache
//   config.json ...     the other files and directories of the source directory (source_tree.h)
//
// The source directory is the directory of the path that the user has named. If the path is a link, as in the
// cache of a hub, the source directory is the directory that contains the link. These entries at the top are
// left out:
//
// - archives, and indexes of shards, because a library would prefer them
//   - the model's own file, its deltas and their private directories, whatever their names are
//   - temporary files of this project
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fs/read/source_tree.h"
#include "fs/tree/directory.h"

namespace stfs {

/// Any thread may call. The calls of this class wait as the calls of SourceTree do.
class PretrainedDirectory final : public SourceTree {
 public:
  /// The directory in `.safetensors`.
  static constexpr FixedEntry kEntry = {"pretrained", kDirectory};
  static constexpr std::string_view kArchiveName = "model.safetensors";

  /// Opens the source directory.
  /// @param model    the absolute path of the archive or the index.
  /// @param deltas   absolute paths, the delta on top last.
  /// @param archive  returns the present number of archive.safetensors.
  PretrainedDirectory(const std::filesystem::path& model, const std::vector<std::filesystem::path>& deltas,
                      std::function<Ino()> archive);

  Result<Ino> find(Ino directory, std::string_view name) override;
  void list(Ino directory, std::uint64_t position, const VisitEntry& visit) const override;
  /// Visits all entries that the kernel may have cached.
  void visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const;

 private:
  [[nodiscard]] bool is_left_out(std::string_view name) const;

  const std::function<Ino()> archive_;
  std::set<std::string, std::less<>> own_names_;  // names of the model's file and of deltas
};

}  // namespace stfs
