// All that one mount shows: a model at its root, or a directory of several models, each with its own
// `.safetensors/`, transactions and inode numbers. The one place where an inode number finds its file system.
//
//   bits 52 to 63   which model, counted from 1; 0 where the mount shows one model at its root
//   bits 0 to 51    the number in that model's file system: trees, views and transactions never reach bit 52
//
// The root of a directory of models is number 1 as well, which the kernel wants (FUSE_ROOT_ID).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fs/filesystem.h"

namespace stfs {

/// Any thread may call. Has the calls of Filesystem, for numbers of the whole mount; what they promise is
/// there. In the root of a directory of models there is nothing to open, to make or to move, and no
/// attribute.
class Forest {
 public:
  struct Member {
    std::string name;  // a file name
    std::unique_ptr<Filesystem> filesystem;
  };
  /// One that could not be opened: looking it up gives this error's message in the log, and EIO.
  struct Absent {
    std::string name;
    Error why;
  };
  static constexpr unsigned kMemberBits = 12;
  static constexpr std::size_t kMostMembers = (std::size_t{1} << kMemberBits) - 1;

  explicit Forest(std::unique_ptr<Filesystem> only);
  /// @param members  one to kMostMembers, of different names.
  Forest(std::vector<Member> members, std::vector<Absent> absent);

  /// The number within its model of any number of the mount: what it says of the kind of file is there.
  static Ino local(Ino ino) { return ino & kLocalMask; }

  [[nodiscard]] Result<struct stat> lookup(Ino parent, std::string_view name) const;
  void forget(Ino ino, std::uint64_t lookups);
  /// @param directory  where the look-up was.
  std::optional<std::string> slice_to_forget(Ino directory);
  [[nodiscard]] Result<struct stat> attributes(Ino ino) const;
  Result<void> read_directory(Ino directory, std::uint64_t position,
                              const Filesystem::VisitEntry& visit) const;
  [[nodiscard]] bool is_directory(Ino ino) const;
  [[nodiscard]] struct statvfs statistics() const;

  Result<struct stat> make_directory(Ino parent, std::string_view name);
  Result<void> remove_directory(Ino parent, std::string_view name);
  Result<void> remove_file(Ino parent, std::string_view name);
  /// EXDEV between two models.
  Result<std::vector<Stale>> rename(Ino parent, std::string_view name, Ino new_parent,
                                    std::string_view new_name);

  [[nodiscard]] Result<std::string> extended_attribute(Ino ino, std::string_view name) const;
  [[nodiscard]] Result<std::vector<std::string>> list_extended_attributes(Ino ino) const;

  // `ino` is what the descriptor was opened on.
  Result<OpenFile*> open(Ino ino, int flags, pid_t opener);
  Result<Bytes> read(Ino ino, std::uint64_t offset, std::size_t size_bytes) const;
  Result<Stale> write(Ino ino, OpenFile& file, std::span<const std::byte> from, std::uint64_t offset,
                      Owner owner, const std::function<void()>& accept = {});
  Result<void> write_back(Ino ino, std::span<const std::byte> from, std::uint64_t offset);
  Result<void> resize(Ino ino, OpenFile& file, std::uint64_t size_bytes, Owner owner);
  Result<void> resize_by_name(Ino ino, std::uint64_t size_bytes, pid_t caller);
  void set_mtime(Ino ino, struct timespec mtime);
  Result<Stale> flush(Ino ino, OpenFile& file, Owner owner, pid_t closer);
  Result<Stale> sync(Ino ino, OpenFile& file);
  Stale release(Ino ino, OpenFile* file);

  /// A file whose change by others matters.
  struct WatchedFile {
    std::filesystem::path path;
    std::size_t member = 0;
    std::optional<std::uint32_t> shard;  // none: the index
  };
  [[nodiscard]] std::vector<WatchedFile> watched_files() const;
  Stale check_for_change(const WatchedFile& file);
  void tidy();
  void end();

  [[nodiscard]] std::vector<Stale> stale_views(const Stale& stale) const;
  void tell_stale_to(const std::function<void(Stale)>& forget);
  void tell_commits_to(const std::function<void()>& note);

  /// Where requests on that file are counted; of the root of a directory, at its first model.
  [[nodiscard]] Activity& activity(Ino ino) const;
  /// Nothing in the mount can be written.
  [[nodiscard]] bool is_read_only() const;
  [[nodiscard]] bool is_read_only(Ino ino) const;

 private:
  static constexpr unsigned kLocalBits = 64 - kMemberBits;
  static constexpr Ino kLocalMask = (Ino{1} << kLocalBits) - 1;

  /// Null for the root of a directory of models, and for numbers of no model.
  [[nodiscard]] Filesystem* member_of(Ino ino) const {
    const std::size_t number = ino >> kLocalBits;
    return number < by_number_.size() ? by_number_[number] : nullptr;
  }
  static Ino lift(Ino ino, Ino like) { return ino | (like & ~kLocalMask); }
  static Stale lift(Stale stale, Ino like) {
    return {lift(stale.first, like), lift(stale.last, like), stale.what};
  }
  static Result<struct stat> lift(Result<struct stat> st, Ino like) {
    if (st) st->st_ino = lift(st->st_ino, like);
    return st;
  }
  static Result<Stale> lift(Result<Stale> stale, Ino like) {
    if (stale) *stale = lift(*stale, like);
    return stale;
  }
  [[nodiscard]] static Ino root_of(std::size_t number) { return Ino{number} << kLocalBits | kRootIno; }
  [[nodiscard]] struct stat stat_of_root() const;

  std::vector<Member> members_;
  std::vector<Absent> absent_;
  std::vector<Filesystem*> by_number_;
};

}  // namespace stfs
