// Everything that one mount shows: one model at the root, or a directory of several models. Each model has
// its own `.safetensors/`, transactions and inode numbers (fs/tree/inode_space.h). Only this class finds the
// MountedModel of an inode number; the caller then calls that MountedModel.
//
// In the root of a directory of models, the model of NAME.safetensors is the directory NAME. NAME.safetensors
// itself can be looked up and is not listed: the name leads to the model's archive.safetensors.
// `.safetensors` in the root contains only the log. SourceDirectory serves the other entries of the source
// directory (fs/model/source_directory.h), and no request changes these entries. A new model is shown as soon
// as its archive in the source directory is whole.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/name_hash.h"
#include "fs/base/user_counts.h"
#include "fs/model/mounted_model.h"
#include "fs/model/mounted_models.h"
#include "fs/model/refused_headers.h"
#include "fs/model/source_directory.h"

namespace stfs {

/// Any thread may call. This class serves the root of a directory of models, counts the kernel's look-ups,
/// and replaces models. The root of a directory of models has no attribute.
class MountRoot {
 public:
  /// The state that a model keeps when it is reopened.
  struct Heritage {
    std::shared_ptr<Activity> activity;
    std::uint64_t least_generation = 0;
    /// True when the mount ends: a long opening must then give up with EINTR.
    std::function<bool()> is_ending{};
  };
  /// Opens the model that is at a path now.
  using Open = std::function<Result<std::unique_ptr<MountedModel>>(const Heritage&)>;
  struct Member {
    std::string name;  // a file name
    std::filesystem::path path{};
    /// Null if the model cannot be opened. Then a look-up fails with EIO and logs the error's message.
    std::unique_ptr<MountedModel> mounted{};
    std::optional<Error> why_absent{};
    /// Reopens the model after it was replaced. Without it the mount keeps showing the old model.
    Open open{};
  };
  static constexpr std::size_t kMostMembers = 4095;
  /// The number of archives that are mounted at first, if a directory has more.
  static constexpr std::size_t kMostAtFirst = 4000;
  static constexpr std::size_t kNoMember = ~std::size_t{0};

  /// @param only  must have a MountedModel; its name is ignored.
  explicit MountRoot(Member only);
  /// @param members  1 to kMostMembers, with different names; at least one has a MountedModel.
  explicit MountRoot(std::vector<Member> members);

  /// Returns the function that opens a model at this path.
  using OpenerOf = std::function<Open(const std::filesystem::path&)>;
  /// Also shows the other entries of the directory of models, and archives that are added to it later.
  /// Without this call the root shows only the models. Call before any other call.
  void show_source(std::unique_ptr<SourceDirectory> source, OpenerOf opener_of);

  /// Holds a MountedModel during a call. A pin that holds none is false.
  using Pin = MountedModels::Pin;
  /// Returns the MountedModel of the inode. The pin is false for the root of a directory of models, and for
  /// numbers of no model. If a model was replaced, the directories in which programs save and look for
  /// tensors are directories of the present MountedModel, because a program may have such a directory as its
  /// working directory.
  [[nodiscard]] Pin model_of(Ino ino) const;

  // MountedModel's calls, which also serve the root of a directory of models:
  /// Each success adds one look-up, which the caller must remove with forget(). Finds
  /// MountedModel::kSameFile in any file, and `..` in any directory.
  [[nodiscard]] Result<struct stat> lookup(Ino parent, std::string_view name) const;
  /// Adds one look-up for an entry of a listing with which the kernel looks up its entries (READDIRPLUS).
  void note_lookup(Ino ino) const;
  void forget(Ino ino, std::uint64_t lookups) const;
  [[nodiscard]] Result<struct stat> attributes(Ino ino) const;
  Result<void> read_directory(Ino directory, std::uint64_t position,
                              const Directory::VisitEntry& visit) const;
  /// MountedModel::directory_looked_up(). 0 for an inode of no model.
  [[nodiscard]] Ino directory_looked_up(Ino ino) const;
  [[nodiscard]] mode_t file_type(Ino ino) const;
  [[nodiscard]] struct statvfs statistics() const;
  /// MountedModel::read(). Also reads the log in the root of a directory of models, and the files beside the
  /// models.
  [[nodiscard]] Result<Bytes> read(Ino ino, std::uint64_t offset, std::size_t size_bytes) const;
  /// True for the number of a log in the root of a directory of models.
  [[nodiscard]] bool is_log_of_root(Ino ino) const { return is_of_hidden(ino) && ino != kHiddenIno; }
  /// EXDEV between two models; ESTALE between two editions of a model that was replaced;
  /// changes_no_files() in the root of a directory of models and beside the models.
  Result<Outdated> rename(Ino parent, std::string_view name, Ino new_parent, std::string_view new_name,
                          unsigned flags = 0);

  /// The error of a request that would make, move, remove or change a file where model_of() finds no model:
  /// EPERM, or EROFS in a read-only mount.
  [[nodiscard]] Error changes_no_files() const;
  /// True for the number of a file or directory beside the models.
  [[nodiscard]] bool serves(Ino ino) const { return source_ && SourceDirectory::serves(ino); }
  /// The object that serves a file of a source directory: the object of the root of a directory of models, or
  /// of the model that shows the file in `pretrained`.
  struct Served {
    ServedFiles& files;
    Node node;
  };
  [[nodiscard]] Served served(const Pin& model, Ino ino) const;
  /// SourceTree::is_changed().
  [[nodiscard]] bool is_source_changed(const Pin& model, Ino ino) const;
  /// True if a look-up of the name may wait for the disk of the source directory.
  [[nodiscard]] bool reads_source(Ino parent, std::string_view name) const;
  /// True if names in the root change with the files of the source directory. Then the kernel must not cache
  /// the names.
  [[nodiscard]] bool has_changing_root() const { return source_ != nullptr; }

  /// A file to watch for changes by other programs.
  struct WatchedFile {
    /// The path of a directory ends with a slash: the watch is for all archives in it.
    std::filesystem::path path;
    std::size_t member = 0;              // kNoMember for the directory
    std::optional<std::uint32_t> shard;  // none for the index, and for a model that could not be opened
    /// The number of an earlier edition of the model whose open files show the same archive.
    std::optional<MountedModels::Number> replaced{};
  };
  [[nodiscard]] std::vector<WatchedFile> watched_files() const;
  /// True if a watched file is on a file system that other hosts may write to. No event reports such writes.
  [[nodiscard]] bool has_remote_files() const;
  /// Returns true if a model has an archive on a web server, so that reads may wait for the network.
  [[nodiscard]] bool reads_from_web() const;
  /// The result of a check: the changes that the kernel must learn of.
  struct Change {
    std::vector<Stale> stale;
    /// The root's entries to forget. If there are any, the root's listing is stale too.
    std::vector<std::string> entries;
    bool is_reopened = false;    // watched_files() returns other files now
    bool has_leftovers = false;  // the kernel may know entries of a model that was replaced
    bool is_due_again = false;   // the check or the reopening failed for now: check again in a while
    bool is_due_soon = false;    // another process is in a commit: check again when it may have ended
    /// Logs what the mount shows now. Call when the kernel has forgotten the rest. May be empty.
    std::function<void()> tell{};
  };
  /// Checks a file that may have changed, and reopens its model if the model was replaced. Only one thread
  /// may call at a time.
  Change check_for_change(const WatchedFile& file);
  /// Checks only modes and owners of all models. Waits for no commit and for no directory. Any thread may
  /// call.
  /// @return the root's attributes if the kernel must forget them. The models report their own.
  Stale check_permissions();
  /// Returns the entries of models that were replaced or are refused, except the entries in the root.
  /// Entries of a replaced model cannot be reached any more, but the kernel would keep the entries in its
  /// caches, and an unused model's file would stay open. Entries of a refused model can still be reached.
  [[nodiscard]] std::vector<std::pair<Ino, std::string>> leftovers() const;
  /// Makes a check_for_change() that is running give up its opening. Call when the mount ends.
  void give_up_opening() { is_ending_ = true; }
  /// Also ends replaced models that are not in use any more.
  void tidy();
  /// MountedModel::close_gaps() of all models.
  void close_gaps();
  void end();

  /// The calls that the mount provides. Set before the first call.
  struct Surroundings {
    /// Tells the kernel about caches that became stale outside of a call that could return them.
    std::function<void(Stale)> forget = [](const Stale&) {};
    /// The same for caches that a close made stale by committing an edit.
    std::function<void(const Outdated&)> forget_outdated = [](const Outdated&) {};
    /// Calls tidy() after a while.
    std::function<void()> note_commit = [] {};
    /// Runs its argument, which changes the entries of the root, before it returns. A listing of the root
    /// that began earlier must not add entries to the kernel's caches later, because these old entries would
    /// hide the new ones.
    std::function<void(const std::function<void()>&)> change_root = [](const auto& change) { change(); };
  };
  void connect_to(Surroundings surroundings);

  /// Names a file for the log: "MODEL: PATH".
  /// @param name  a name in the directory `ino`. Empty: names the file `ino` itself.
  [[nodiscard]] std::string label_of(Ino ino, std::string_view name) const;
  /// The counts of a model's requests. Requests on the root of a directory of models are added to the counts
  /// of its first model.
  [[nodiscard]] Activity& activity(const Pin& model) const;
  /// True if no file in the mount can ever be written.
  [[nodiscard]] bool is_read_only() const { return is_read_only_; }
  [[nodiscard]] bool is_read_only(const Pin& model) const;
  /// The errno of a FLUSH of a read-only descriptor. After ENOSYS the kernel sends no FLUSH for any file, so
  /// closes of written files would commit nothing. Therefore ENOSYS is used only if the whole mount is
  /// read-only.
  [[nodiscard]] int errno_of_readers_flush() const { return is_read_only_ ? ENOSYS : 0; }

 private:
  using Number = MountedModels::Number;
  static constexpr Number kNone = ~Number{0};

  struct ModelSlot {
    std::string name;
    std::filesystem::path path;
    Open open;
    std::shared_ptr<Activity> activity;
    // Used only by the thread that checks for changes:
    unsigned failures = 0;  // attempts to reopen the model that failed in a row
    std::chrono::steady_clock::time_point tried_at{};
    // Guarded by mutex_:
    Number current = kNone;
    std::optional<Error> why_absent;  // set if current is kNone
  };

  [[nodiscard]] Result<struct stat> find(Ino parent, std::string_view name) const;
  /// The directory itself if it has no parent.
  [[nodiscard]] Ino parent_of(Ino directory) const;
  [[nodiscard]] Pin pin_current(const ModelSlot& slot) const;
  /// The slot of a model, also of a model that was replaced.
  [[nodiscard]] std::shared_ptr<ModelSlot> slot_of(const Pin& model) const;
  /// False for an edition whose model was replaced.
  [[nodiscard]] bool is_current(Number number) const;
  /// Returns all slots, also the slots of models that are absent.
  [[nodiscard]] std::vector<std::shared_ptr<ModelSlot>> slots() const {
    const SharedLock lock(mutex_);
    return slots_;
  }
  [[nodiscard]] std::shared_ptr<ModelSlot> first_slot() const {
    const SharedLock lock(mutex_);
    return slots_.front();
  }
  void add(Member member);
  void add(std::shared_ptr<ModelSlot> slot);
  /// Takes a share for the owner of the archive. EDQUOT if the owner has too many models (UserLimits::models,
  /// header_bytes). Root and the mounting user have no limit. Takes nothing for a mount of one model.
  [[nodiscard]] Result<UserCounts::Share> share_of_owner(const std::filesystem::path& archive);
  /// Returns the same share, with the header of the opened model added.
  [[nodiscard]] UserCounts::Share with_header(UserCounts::Share share, const std::filesystem::path& archive,
                                              const Model& model);
  [[nodiscard]] Result<struct stat> find_in_root(std::string_view name) const;
  /// Finds an entry beside the models, and adds a look-up.
  [[nodiscard]] Result<struct stat> find_in_source(Ino parent, std::string_view name) const;
  /// True for the number of `.safetensors` in the root of a directory of models, or of a log in it.
  [[nodiscard]] bool is_of_hidden(Ino ino) const {
    return !is_lone_ && (ino == kHiddenIno || Views::is_log(ino));
  }
  [[nodiscard]] Result<struct stat> stat_of_hidden(Ino ino) const;
  /// The slot of an archive in the source directory, shown or not. Null if the archive never had a slot.
  [[nodiscard]] std::shared_ptr<ModelSlot> slot_of_file(std::string_view file_name) const;
  /// The same, if the model is shown.
  [[nodiscard]] std::shared_ptr<ModelSlot> shown_slot_of_file(std::string_view file_name) const;
  /// The slot of a model's directory, shown or not. Null if no slot has this name.
  [[nodiscard]] std::shared_ptr<ModelSlot> slot_named(std::string_view name) const;
  [[nodiscard]] bool is_shown(const ModelSlot& slot) const;
  /// EEXIST or ENOSPC if a new archive of this name cannot become a model.
  [[nodiscard]] Result<void> check_model_name(std::string_view file_name) const;
  /// Opens an archive that is not shown, and shows its model. Only check_directory() calls it.
  Result<void> show_model(const std::string& file_name);
  /// Shows archives that were added to the source directory.
  Change check_directory();
  /// Gives an edition its inode numbers, and connects it to the mount. Call before it becomes current.
  void connect(const Pin& model);
  Change open_anew(ModelSlot& slot, const Pin& old);
  /// Opens the archive at the slot's path as an edition that is not current yet, with one holder.
  Result<Number> open_next(const ModelSlot& slot, const Pin& old);
  Result<Number> open_next(const ModelSlot& slot, const Pin& old, UserCounts::Share share);
  /// Opens the archive that the name in the open directory leads to. Never opens an archive of another
  /// directory that is now at the path.
  Result<std::unique_ptr<MountedModel>> open_in_place(const ModelSlot& slot, const Heritage& heritage) const;
  /// Makes an edition of open_next() current. Returns false and lets go of the edition if `old` is not
  /// current any more, because a program's request has replaced the model since.
  bool make_current(ModelSlot& slot, const Pin& old, Number next);
  /// Shows the archive that a save has put in place of the archive of the edition of this number. The kernel
  /// may hold the lock of a directory below the root during the request, so this function waits for no
  /// notification. A listing of the root that began earlier ends before the kernel forgets the first of the
  /// returned entries, because the kernel's entries are forgotten under the root's lock.
  /// @return the entries that the kernel must forget.
  Outdated show_replacement(Number number);
  /// The part of check_for_change() for open files of an earlier edition of a model.
  Change check_replaced(Number edition, std::uint32_t shard);
  /// Refuses the model from now on, because it could not be reopened.
  Change refuse(ModelSlot& slot, const Pin& old, const Error& why);
  [[nodiscard]] Change entries_of(const ModelSlot& slot, const Pin& old, const Pin& present) const;

  [[nodiscard]] InodeSpace space_of(Number number) const { return {number, is_lone_, !is_read_only_}; }
  /// True for the number of a directory that is part of no edition. Look-ups of such a directory are not
  /// counted.
  [[nodiscard]] bool is_shared(Ino ino) const { return space_of(0).is_shared(ino); }
  [[nodiscard]] Result<struct stat> stat_of_root() const;
  /// The rights that at least one model gives; nothing if no model can be read.
  [[nodiscard]] std::optional<struct stat> loosest_of_models() const;
  /// True if every user who may enter the root may also list the source directory.
  [[nodiscard]] Result<bool> shows_entries() const;

  const bool is_lone_;
  bool is_read_only_ = true;
  std::atomic<bool> is_ending_ = false;
  UserCounts models_{"models and open versions of them", UserLimits().models};
  UserCounts headers_{"bytes in headers of models", UserLimits().header_bytes};
  bool is_elsewhere_ = false;     // the log says that the directory was exchanged; as below
  RefusedHeaders refused_;        // as below
  NameSet<std::string> unshown_;  // archives whose refusal is in the log; only check_directory() uses it
  mutable MountedModels mounted_models_;
  mutable TextViews logs_{Views::kLogFiles, "states of the log that programs have open",
                          UserLimits().texts};  // in the root's `.safetensors`
  std::unique_ptr<SourceDirectory> source_;     // null: the root shows only the models
  OpenerOf opener_of_;
  std::atomic<unsigned> replacements_ = 0;  // replacements that will be shown soon
  std::atomic<bool> has_replaced_ = false;  // a replacement was shown: its files must be watched
  Surroundings surroundings_;
  mutable SharedMutex mutex_;  // also guards members of ModelSlot; taken before MountedModels' mutex
  std::vector<std::shared_ptr<ModelSlot>> slots_ GUARDED_BY(mutex_);
  NameMap<std::string, std::shared_ptr<ModelSlot>> by_file_ GUARDED_BY(mutex_);  // file names of archives
};

}  // namespace stfs
