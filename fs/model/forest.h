// All that one mount shows: a model at its root, or a directory of several models, each with its own
// `.safetensors/`, transactions and inode numbers. The one place where an inode number finds its file system.
//
//   bits 50 to 63   which file system (fs/model/editions.h). Where the mount shows one model at its root, its
//   first
//                   one is 0; of a directory of models the first is 1
//   bits 0 to 49    the number in that file system: trees, views and transactions never reach bit 50
//
// The root is number 1 (FUSE_ROOT_ID), whichever file system it shows now.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <vector>

#include "fs/model/editions.h"
#include "fs/model/filesystem.h"

namespace stfs {

/// Any thread may call. Has the calls of Filesystem, for numbers of the whole mount; what they promise is
/// there. In the root of a directory of models there is nothing to open, to make or to move, and no
/// attribute.
class Forest {
 public:
  /// What a model keeps when it is opened anew.
  struct Heritage {
    std::shared_ptr<Activity> activity;
    std::uint64_t least_generation = 0;
  };
  /// Opens what lies at a model's path now.
  using Open = std::function<Result<std::unique_ptr<Filesystem>>(const Heritage&)>;
  struct Member {
    std::string name;  // a file name
    std::filesystem::path path{};
    /// Null where it can't be opened: looking it up gives the error's message in the log, and EIO.
    std::unique_ptr<Filesystem> filesystem{};
    std::optional<Error> why_absent{};
    /// None: a model that is replaced stays as it is.
    Open open{};
  };
  static constexpr unsigned kNumberBits = 14;
  static constexpr std::size_t kMostMembers = 4095;

  /// @param only  with a file system; its name does not matter.
  explicit Forest(Member only);
  /// @param members  one to kMostMembers, of different names, one of them with a file system.
  explicit Forest(std::vector<Member> members);

  /// The number within its model of any number of the mount: what it says of the kind of file is there.
  static Ino local(Ino ino) { return ino & kLocalMask; }

  /// To be forgotten, once for each success.
  [[nodiscard]] Result<struct stat> lookup(Ino parent, std::string_view name) const;
  /// Of what was listed: the same as a look-up.
  void note_lookup(Ino ino) const;
  /// Filesystem's.
  void note_told(Ino ino) const;
  void visit_cached(const Stale& stale, const Filesystem::VisitCached& visit) const;
  void forget(Ino ino, std::uint64_t lookups) const;
  /// @param directory  where the look-up was.
  std::optional<std::string> slice_to_forget(Ino directory);
  [[nodiscard]] Result<struct stat> attributes(Ino ino) const;
  Result<void> read_directory(Ino directory, std::uint64_t position,
                              const Filesystem::VisitEntry& visit) const;
  [[nodiscard]] bool is_directory(Ino ino) const;
  [[nodiscard]] struct statvfs statistics() const;

  Result<struct stat> make_directory(Ino parent, std::string_view name, Maker maker = {});
  Result<void> remove_directory(Ino parent, std::string_view name);
  Result<void> remove_file(Ino parent, std::string_view name);
  /// EXDEV between two models; ESTALE between two states of one that has been replaced.
  Result<std::vector<Stale>> rename(Ino parent, std::string_view name, Ino new_parent,
                                    std::string_view new_name);

  [[nodiscard]] Result<std::string> extended_attribute(Ino ino, std::string_view name) const;
  [[nodiscard]] Result<std::vector<std::string>> list_extended_attributes(Ino ino) const;

  // `ino` is what the descriptor was opened on.
  Result<OpenFile*> open(Ino ino, int flags, pid_t opener);
  Result<Bytes> read(Ino ino, std::uint64_t offset, std::size_t size_bytes) const;
  [[nodiscard]] std::optional<int> same_file(Ino ino) const;
  Result<Stale> write(Ino ino, OpenFile& file, std::span<const std::byte> from, std::uint64_t offset,
                      Caller caller, const std::function<void()>& accept = {});
  Result<void> write_back(Ino ino, std::span<const std::byte> from, std::uint64_t offset);
  Result<void> resize(Ino ino, OpenFile& file, std::uint64_t size_bytes, Caller caller);
  Result<void> resize_by_name(Ino ino, std::uint64_t size_bytes, pid_t caller);
  void set_mtime(Ino ino, struct timespec mtime);
  Result<Stale> flush(Ino ino, OpenFile& file, Owner owner, pid_t closer);
  Result<Stale> sync(Ino ino, OpenFile& file);
  Stale release(Ino ino, OpenFile* file);

  /// A file whose change by others matters.
  struct WatchedFile {
    std::filesystem::path path;
    std::size_t member = 0;
    std::optional<std::uint32_t> shard;  // none: the index, or what could not be opened
  };
  [[nodiscard]] std::vector<WatchedFile> watched_files() const;
  /// One of them lies where other hosts may write to it, which nobody tells us of.
  [[nodiscard]] bool has_remote_files() const;
  /// What is not as it was.
  struct Change {
    std::vector<Stale> stale;
    /// Entries of the root, and its listing.
    std::vector<std::string> entries;
    bool is_reopened = false;   // watched_files() are others now
    bool is_due_again = false;  // it could not be looked at or opened just now: look at it again in a while
    /// Says what the mount shows now; for when the kernel has forgotten the rest. May be empty.
    std::function<void()> tell{};
  };
  /// Looks at files that have changed, and opens the models anew that were replaced. One thread at a time.
  Change check_for_change(const WatchedFile& file);
  /// Entries below those of the root, of models that were replaced or are refused. Nobody finds those of a
  /// replaced one any more, but the kernel would keep them, and so the file of a model that nobody uses.
  /// Those of a refused one are still found.
  [[nodiscard]] std::vector<std::pair<Ino, std::string>> leftovers() const;
  /// Also ends the models that were replaced and that nobody uses any more.
  void tidy();
  void end();

  [[nodiscard]] std::vector<Stale> stale_views(const Stale& stale) const;
  /// What a mount has to do for it; set before the first call.
  struct Surroundings {
    /// Tells caches that became stale without a call to answer.
    std::function<void(Stale)> forget = [](const Stale&) {};
    /// Calls tidy() in a while.
    std::function<void()> note_commit = [] {};
    /// Runs what changes the entries of the root, and returns then. No listing of the root that has begun
    /// before may make the kernel know entries afterwards: they would hide the new ones.
    std::function<void(const std::function<void()>&)> change_root = [](const auto& change) { change(); };
  };
  void connect_to(Surroundings surroundings);

  /// Where requests on that file are counted; of the root of a directory, at its first model.
  [[nodiscard]] Activity& activity(Ino ino) const;
  /// Nothing in the mount can be written, ever.
  [[nodiscard]] bool is_read_only() const { return is_read_only_; }
  [[nodiscard]] bool is_read_only(Ino ino) const;
  /// The answer to a FLUSH of a descriptor that can only read. ENOSYS makes the kernel send no FLUSH any
  /// more, for whatever file: then closes of written files would commit nothing. So never where anything can
  /// be written.
  [[nodiscard]] int errno_of_readers_flush() const { return is_read_only_ ? ENOSYS : 0; }

 private:
  using Number = Editions::Number;
  using Pin = Editions::Pin;
  static constexpr unsigned kLocalBits = 64 - kNumberBits;
  static constexpr Ino kLocalMask = (Ino{1} << kLocalBits) - 1;
  static constexpr Number kNone = ~Number{0};

  struct Tree {
    std::string name;
    std::filesystem::path path;
    Open open;
    std::shared_ptr<Activity> activity;
    // Of the thread that looks for changes:
    unsigned failures = 0;  // to open it anew, one after the other
    std::chrono::steady_clock::time_point tried_at{};
    // Guarded by mutex_:
    Number current = kNone;
    std::optional<Error> why_absent;
  };

  [[nodiscard]] Result<struct stat> find(Ino parent, std::string_view name) const;
  /// Nothing for the root of a directory of models, and for numbers of no model.
  [[nodiscard]] Pin pin(Ino ino) const;
  [[nodiscard]] Pin pin_current(const Tree& tree) const;
  /// False of a model that has been replaced.
  [[nodiscard]] bool is_current(Number number) const;
  /// The first model that there is.
  [[nodiscard]] Pin pin_any() const;
  void add(Member member);
  /// Of a file system that is not current yet.
  void connect(Filesystem& filesystem, Number number) const;
  Change open_anew(Tree& tree, const Pin& old);
  /// What it is refused for from now on.
  Change refuse(Tree& tree, const Pin& old, const Error& why);
  [[nodiscard]] Change entries_of(const Tree& tree, const Pin& old, const Pin& present) const;

  [[nodiscard]] Ino lift(Ino ino, Number number) const {
    return is_lone_ && ino == kRootIno ? kRootIno : ino | Ino{number} << kLocalBits;
  }
  [[nodiscard]] Stale lift(const Stale& stale, Number number) const {
    return {lift(stale.first, number), lift(stale.last, number), stale.what};
  }
  [[nodiscard]] Result<struct stat> lift(Result<struct stat> st, const Pin& pin) const {
    if (st) st->st_ino = lift(st->st_ino, pin.number());
    return st;
  }
  [[nodiscard]] Result<Stale> lift(Result<Stale> stale, const Pin& pin) const {
    if (stale) *stale = lift(*stale, pin.number());
    return stale;
  }
  [[nodiscard]] struct stat stat_of_root() const;

  const bool is_lone_;
  bool is_read_only_ = true;
  std::vector<std::unique_ptr<Tree>> trees_;
  mutable Editions editions_;
  Surroundings surroundings_;
  mutable std::shared_mutex mutex_;  // guards what each tree says; taken before that of the editions
};

}  // namespace stfs
