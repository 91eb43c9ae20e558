// Everything that one mount shows: one model at the root, or a directory of several models. Each model has
// its own `.safetensors/`, transactions and inode numbers (fs/tree/inode_space.h). Only this class finds the
// file system of an inode number; a caller then calls that file system.
#pragma once

#include <atomic>
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

/// Any thread may call. What is not a call of one model stays here: the root of a directory of models, the
/// kernel's look-ups, and the replacement of models. In the root of a directory of models nothing can be
/// opened, made or moved, and there is no attribute.
class Forest {
 public:
  /// The state that a model keeps when it is reopened.
  struct Heritage {
    std::shared_ptr<Activity> activity;
    std::uint64_t least_generation = 0;
    /// Whether the mount ends: a long opening must then give up with EINTR.
    std::function<bool()> is_ending{};
  };
  /// Opens the model that lies at a path now.
  using Open = std::function<Result<std::unique_ptr<Filesystem>>(const Heritage&)>;
  struct Member {
    std::string name;  // a file name
    std::filesystem::path path{};
    /// Null if the model cannot be opened. Then a look-up fails with EIO and logs the error's message.
    std::unique_ptr<Filesystem> filesystem{};
    std::optional<Error> why_absent{};
    /// Reopens the model after it was replaced. Without it the mount keeps showing the old model.
    Open open{};
  };
  static constexpr std::size_t kMostMembers = 4095;

  /// @param only  must have a file system; its name is ignored.
  explicit Forest(Member only);
  /// @param members  1 to kMostMembers, with different names; at least one has a file system.
  explicit Forest(std::vector<Member> members);

  /// Holds a model's file system for the length of a call. False: none.
  using Pin = Editions::Pin;
  /// The file system of the inode. None for the root of a directory of models, and for numbers of no model.
  [[nodiscard]] Pin model_of(Ino ino) const;

  // Filesystem's calls, which also serve the root of a directory of models:
  /// Each success adds one look-up, which the caller must take back with forget().
  [[nodiscard]] Result<struct stat> lookup(Ino parent, std::string_view name) const;
  /// Adds one look-up for an entry of a listing that the kernel counts as looked up.
  void note_lookup(Ino ino) const;
  void forget(Ino ino, std::uint64_t lookups) const;
  [[nodiscard]] Result<struct stat> attributes(Ino ino) const;
  Result<void> read_directory(Ino directory, std::uint64_t position,
                              const Filesystem::VisitEntry& visit) const;
  [[nodiscard]] mode_t file_type(Ino ino) const;
  [[nodiscard]] struct statvfs statistics() const;
  /// EXDEV between two models; ESTALE between two file systems of a model that was replaced.
  Result<Outdated> rename(Ino parent, std::string_view name, Ino new_parent, std::string_view new_name,
                          unsigned flags = 0);

  /// A file to watch for changes by others.
  struct WatchedFile {
    std::filesystem::path path;
    std::size_t member = 0;
    std::optional<std::uint32_t> shard;  // none for the index, and for a model that could not be opened
  };
  [[nodiscard]] std::vector<WatchedFile> watched_files() const;
  /// True if one of them lies on a file system that other hosts may write to. No event reports such writes.
  [[nodiscard]] bool has_remote_files() const;
  /// The result of a check: the changes that the kernel must learn of.
  struct Change {
    std::vector<Stale> stale;
    /// The root's entries to forget. If there are any, the root's listing is stale too.
    std::vector<std::string> entries;
    bool is_reopened = false;   // watched_files() returns other files now
    bool is_due_again = false;  // the check or the reopening failed for now: check again in a while
    /// Logs what the mount shows now. Call when the kernel has forgotten the rest. May be empty.
    std::function<void()> tell{};
  };
  /// Checks a file that may have changed, and reopens its model if the model was replaced. One thread at a
  /// time.
  Change check_for_change(const WatchedFile& file);
  /// The entries below those of the root, of models that were replaced or are refused. Entries of a replaced
  /// model are not reachable any more, but the kernel would keep them in its caches, and so an unused model's
  /// file would stay open. Entries of a refused model are still reachable.
  [[nodiscard]] std::vector<std::pair<Ino, std::string>> leftovers() const;
  /// Makes a check_for_change() that is running give up its opening. Call when the mount ends.
  void give_up_opening() { is_ending_ = true; }
  /// Also ends replaced models that are not in use any more.
  void tidy();
  void end();

  /// The calls that the mount provides. Set before the first call.
  struct Surroundings {
    /// Tells the kernel about caches that became stale outside of a call that could return them.
    std::function<void(Stale)> forget = [](const Stale&) {};
    /// The same for what an edit has made stale that a close has committed.
    std::function<void(const Outdated&)> forget_outdated = [](const Outdated&) {};
    /// Calls tidy() after a while.
    std::function<void()> note_commit = [] {};
    /// Runs its argument, which changes the entries of the root, before it returns. A listing of the root
    /// that began earlier must not add entries to the kernel's caches later: they would hide the new ones.
    std::function<void(const std::function<void()>&)> change_root = [](const auto& change) { change(); };
  };
  void connect_to(Surroundings surroundings);

  /// The counts of a model's requests. Requests on the root of a directory of models count for its first
  /// model.
  [[nodiscard]] Activity& activity(const Pin& model) const;
  /// True if no file in the mount can ever be written.
  [[nodiscard]] bool is_read_only() const { return is_read_only_; }
  [[nodiscard]] bool is_read_only(const Pin& model) const;
  /// The errno of a FLUSH of a read-only descriptor. After ENOSYS the kernel sends no FLUSH for any file, so
  /// closes of written files would commit nothing. Hence ENOSYS only if the whole mount is read-only.
  [[nodiscard]] int errno_of_readers_flush() const { return is_read_only_ ? ENOSYS : 0; }

 private:
  using Number = Editions::Number;
  static constexpr Number kNone = ~Number{0};

  struct Tree {
    std::string name;
    std::filesystem::path path;
    Open open;
    std::shared_ptr<Activity> activity;
    // Used only by the thread that checks for changes:
    unsigned failures = 0;  // attempts to reopen the model that failed in a row
    std::chrono::steady_clock::time_point tried_at{};
    // Guarded by mutex_:
    Number current = kNone;
    std::optional<Error> why_absent;
  };

  [[nodiscard]] Result<struct stat> find(Ino parent, std::string_view name) const;
  [[nodiscard]] Pin pin_current(const Tree& tree) const;
  /// False for a file system whose model was replaced.
  [[nodiscard]] bool is_current(Number number) const;
  void add(Member member);
  /// Gives a file system its inode numbers, and connects it to the mount. Call before it becomes current.
  void connect(const Pin& model) const;
  Change open_anew(Tree& tree, const Pin& old);
  /// Refuses the model from now on, because it could not be reopened.
  Change refuse(Tree& tree, const Pin& old, const Error& why);
  [[nodiscard]] Change entries_of(const Tree& tree, const Pin& old, const Pin& present) const;

  [[nodiscard]] InodeSpace space_of(Number number) const { return {number, is_lone_}; }
  [[nodiscard]] struct stat stat_of_root() const;

  const bool is_lone_;
  bool is_read_only_ = true;
  std::atomic<bool> is_ending_ = false;
  std::vector<std::unique_ptr<Tree>> trees_;
  mutable Editions editions_;
  Surroundings surroundings_;
  mutable std::shared_mutex mutex_;  // guards the members of Tree named there; taken before Editions' mutex
};

}  // namespace stfs
