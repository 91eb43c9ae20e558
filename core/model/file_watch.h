// Watches files for changes by other programs.
//
// inotify reports every write(2), truncate and rename on this host. It reports neither stores through another
// program's mapping nor changes by other hosts of a network file system: there the caller must check the
// files again and again. The watch covers the files themselves, and the names in each directory that contains
// one of the files or a link to one, including names of files that do not exist. A path that ends with a
// slash means all archives that are created in this directory, are moved to it, or are closed there after a
// write.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs {

/// Used by one thread at a time.
class FileWatch {
 public:
  /// Watches these files instead of the previous ones. Changes before the call are not reported, so the
  /// caller checks all files once more. After a failure (ENOSPC: the user has too many watches; EACCES) the
  /// other files are watched. is_open() is false if no file can be watched.
  Result<void> watch(std::span<const std::filesystem::path> files);
  [[nodiscard]] bool is_open() const { return static_cast<bool>(events_); }
  /// A descriptor for poll(2): readable while there are events. -1 before watch().
  [[nodiscard]] int descriptor() const { return events_.get(); }
  /// Takes the pending events, and adds the positions of the files that they concern.
  void take_events(std::set<std::size_t>& files) const;
  /// Returns the positions of all files.
  [[nodiscard]] std::set<std::size_t> all() const;

 private:
  /// A watch, and the name of a file in the watched directory. The name is "" for a watch on the file itself,
  /// or kAny.
  using Watch = std::pair<int, std::string>;
  /// A name that no file has. It means all archives of a directory.
  static constexpr const char* kAny = "/";

  Result<void> watch_file(const std::filesystem::path& file, std::size_t position);
  bool watch_name(const std::filesystem::path& file, std::size_t position);

  UniqueFd events_;
  std::multimap<Watch, std::size_t> watched_;
  std::size_t count_ = 0;
};

}  // namespace stfs
