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

#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/storage/permissions.h"
#include "fs/read/views.h"
#include "fs/tree/directory.h"

namespace stfs {

/// Any thread may call. No other lock is taken while its mutex is held, and the mutex is held only for
/// moments. find(), list() and look() wait for the disk of the source directory; the other calls wait for
/// memory only.
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
  [[nodiscard]] std::string target(Ino link) const;

  /// What the source directory allows, and when its entries changed.
  struct Source {
    Permissions permissions;
    struct timespec mtime {};
  };
  /// As the last find(), list() or look() found it. Nothing if it could not be read.
  [[nodiscard]] std::optional<Source> source() const;
  /// Reads it again. Call when the directory itself is looked up.
  void look() const { open_source(); }

  /// Visits all entries that the kernel may have cached.
  void visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const;

 private:
  /// Opens the source directory for reading, and notes what it allows. False: it cannot be read.
  UniqueFd open_source() const;
  /// Whether an entry of this name may have a link.
  [[nodiscard]] bool is_linked(std::string_view name) const;
  /// The names of all links, ascending; empty if the source directory cannot be read.
  [[nodiscard]] std::vector<std::string> linked_names() const;
  [[nodiscard]] Ino link_named(std::string_view name) const;

  const std::filesystem::path directory_;
  const UniqueFd source_;
  const std::function<Ino()> archive_;
  std::set<std::string, std::less<>> own_names_;  // of the model's file and of deltas

  mutable std::mutex mutex_;  // guards what follows
  mutable std::optional<Source> found_;
  mutable std::deque<std::string> names_;                    // by the number of the link
  mutable std::unordered_map<std::string_view, Ino> links_;  // the keys refer to names_
};

}  // namespace stfs
