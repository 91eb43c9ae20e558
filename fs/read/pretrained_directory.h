// `.safetensors/pretrained/`: the directory of the archive or index, with the model as the mount shows it. A
// library that loads a directory, as from_pretrained() does, loads the model with its deltas and shards
// merged.
//
//   model.safetensors   the file archive.safetensors of `.safetensors`: the same inode, so one page cache
//   config.json ...     each other entry of the source directory, as a symbolic link to its absolute path
//
// The source directory is that of the path that the user has named. If this path is a link, as in the cache
// of a hub, it is the directory of the link. These entries have no link:
//
//   - archives, and indexes of shards: a library would prefer them
//   - the model's own file and its deltas, whatever their names are
//   - temporary files of this project
//   - journals, and temporary files of this project
//   - directories on which something is mounted: the mount itself may be one of them
//
// The directory is read at each look-up and at each listing, through a descriptor from the time before the
// mount: if the mount covers the source directory, its path leads into the mount, and a request that waits
// for another request may wait forever. A source directory that cannot be read gives model.safetensors alone.
//
// Inode numbers lie between those of the tree and those of the views. A link gets its number when its name is
// found for the first time, and keeps it. The table of names only grows, by names that have existed in the
// source directory. A link's target never changes. The kernel must not cache the names, because nobody tells
// when the source directory changes.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "fs/read/source_links.h"
#include "fs/read/views.h"
#include "fs/tree/directory.h"

namespace stfs {

/// Any thread may call. find(), list() and look() wait for the disk of the source directory; the other calls
/// wait for memory only.
class PretrainedDirectory final : public Directory {
 public:
  static constexpr Ino kDirectory = Ino{1} << 39U;
  static constexpr Ino kLinks = kDirectory + 1;
  static constexpr Ino kEnd = Views::kNpy;
  /// The directory in `.safetensors`.
  static constexpr FixedEntry kEntry = {"pretrained", kDirectory};
  static constexpr std::string_view kArchiveName = "model.safetensors";

  /// Opens the source directory.
  /// @param model    the absolute path of the archive or the index.
  /// @param deltas   absolute paths.
  /// @param archive  returns the number of archive.safetensors now.
  PretrainedDirectory(const std::filesystem::path& model, const std::vector<std::filesystem::path>& deltas,
                      std::function<Ino()> archive);

  static bool owns(Ino ino) { return ino >= kDirectory && ino < kEnd; }
  [[nodiscard]] Node node(Ino ino) const override;
  Result<Ino> find(Ino directory, std::string_view name) override;
  /// A listing in several calls shows no entry twice, and each entry that exists during all of them.
  void list(Ino directory, std::uint64_t position, const VisitEntry& visit) const override;

  /// The absolute path to which a link leads. Only for links.
  [[nodiscard]] std::string target(Ino link) const { return links_.target(link - kLinks); }

  /// SourceLinks::source().
  [[nodiscard]] std::optional<SourceLinks::Source> source() const { return links_.source(); }
  /// Reads it again. Call when the directory itself is looked up.
  void look() const { links_.open(); }

  /// Visits all entries that the kernel may have cached.
  void visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const;

 private:
  /// Whether an entry of this name may not have a link.
  [[nodiscard]] bool is_left_out(std::string_view name) const;

  const std::function<Ino()> archive_;
  std::set<std::string, std::less<>> own_names_;  // of the model's file and of deltas
  const SourceLinks links_;
};

}  // namespace stfs
