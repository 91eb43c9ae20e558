// The entries of a source directory, each as a symbolic link to its absolute path: the root of a directory of
// models shows them (fs/model/source_directory.h).
//
// The directory is read at each look-up and at each listing, through a descriptor from the time before the
// mount: if the mount covers the source directory, its path leads into the mount, and a request that waits
// for another request may wait forever.
//
// These entries have no link:
//
//   - those that the owner of this object leaves out
//   - journals
//   - directories on which something is mounted: the mount itself may be one of them
//
// A link gets its number when its name is found for the first time, and keeps it. The table of names only
// grows, by names that have existed in the source directory. A link's target never changes. The kernel must
// not cache the names, because nobody tells when the source directory changes.
#pragma once

#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/storage/permissions.h"
#include "fs/read/source_entry.h"

namespace stfs {

/// Any thread may call. No other lock is taken while its mutex is held, and the mutex is held only for
/// moments. find(), list() and open() wait for the disk; the other calls wait for memory only.
class SourceLinks {
 public:
  /// Counts from 0.
  using Number = std::uint64_t;
  /// Whether an entry of this name has no link.
  using IsLeftOut = std::function<bool(std::string_view name)>;

  /// Opens the directory.
  SourceLinks(std::filesystem::path directory, IsLeftOut is_left_out);

  /// The link of that name; nothing if no entry has the name now.
  [[nodiscard]] std::optional<Number> find(std::string_view name) const;
  /// All links, in the order of their numbers; empty if the directory cannot be read.
  [[nodiscard]] std::vector<std::pair<Number, std::string>> list() const;
  [[nodiscard]] bool has(Number link) const;
  [[nodiscard]] std::string name(Number link) const;
  /// The absolute path to which a link leads.
  [[nodiscard]] std::string target(Number link) const { return (directory_ / name(link)).string(); }

  /// What the directory allows, and when its entries changed.
  struct Source {
    Permissions permissions;
    struct timespec mtime {};
  };
  /// As the last find(), list() or open() found it. Nothing if it could not be read.
  [[nodiscard]] std::optional<Source> source() const;
  /// Opens the directory for reading, and notes what it allows. False: it cannot be read.
  UniqueFd open() const;
  /// The descriptor for calls that end in `at`. Not for reading.
  [[nodiscard]] int descriptor() const { return source_.get(); }
  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }

  /// Visits the names of all links that were ever found.
  void visit_known(const std::function<void(std::string_view name)>& visit) const;

 private:
  [[nodiscard]] bool is_linked(std::string_view name) const;
  [[nodiscard]] Number link_named(std::string_view name) const;

  const std::filesystem::path directory_;
  const UniqueFd source_;
  const IsLeftOut is_left_out_;

  mutable std::mutex mutex_;  // guards what follows
  mutable std::optional<Source> found_;
  mutable std::deque<std::string> names_;                       // by the number of the link
  mutable std::unordered_map<std::string_view, Number> links_;  // the keys refer to names_
};

}  // namespace stfs
