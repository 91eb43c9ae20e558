// Simulates one disk and processes, on one host or on several, that use it through core's Storage. Nothing
// touches the real file system, except for memory that replaces a mapped file.
//
// To simulate a crash, a test takes an image of the disk, makes from it an image that a crash can leave
// (disk_crash.h), and starts a new model on that image.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/storage/file.h"
#include "core/storage/group_members.h"
#include "tests/support/choices.h"
#include "tests/support/disk_image.h"
#include "tests/support/disk_user.h"
#include "tests/support/lock_table.h"

namespace stfs::test {

/// How one host sees the disk.
struct DiskMount {
  std::uint64_t device = 1;     // st_dev: each host chooses it
  bool has_birth_times = true;  // statx returns them
  Boot boot{.id = {1}, .host = 1};
};

struct DiskOptions {
  bool has_clone = false;  // FICLONERANGE, as xfs and btrfs
  std::uint64_t most_range_bytes = kMostRangeBytes;
  /// A new block that never reached the disk may show old bytes of other files; false: zeros. False for file
  /// systems that write data before the size, as ext4 (data=ordered), xfs and btrfs.
  bool has_stale_blocks = true;
  bool has_unnamed = true;  // O_TMPFILE; false: files have their fallback name from the start
  bool has_locks = true;
  /// The errno of calls on a file that was opened by its name and has no name left; 0: the calls work.
  /// Cluster file systems return ENOENT, NFS returns ESTALE.
  int removed_errno = 0;
  DiskAccess directory{.permissions = 0777};  // of every directory
  // For processes that are started without a DiskMount.
  bool has_birth_times = true;
  std::uint64_t device = 1;
  Boot boot{.id = {1}, .host = 1};

  [[nodiscard]] DiskMount mount() const {
    return {.device = device, .has_birth_times = has_birth_times, .boot = boot};
  }
};

class DiskProcess;

/// Any thread may call.
class DiskModel {
 public:
  explicit DiskModel(DiskOptions options = {}, DiskImage image = {})
      : options_(options), image_(std::move(image)) {}

  /// The storage as one process sees it. The model must outlive it.
  std::unique_ptr<DiskProcess> start_process(const DiskUser& user = {});
  std::unique_ptr<DiskProcess> start_process(const DiskUser& user, const DiskMount& mount);

  [[nodiscard]] DiskImage image() const;
  [[nodiscard]] const DiskOptions& options() const { return options_; }
  [[nodiscard]] bool has_locks_held() const;

  /// Puts a settled file at the path.
  InodeNumber put(std::string_view path, std::span<const std::byte> content, const DiskAccess& access = {});
  /// Replaces the file at the path by a new settled file, as rename(2) does.
  InodeNumber replace(std::string_view path, std::span<const std::byte> content,
                      const DiskAccess& access = {});
  /// Gives a file another settled name.
  void link(InodeNumber inode, std::string_view path);

  /// Crashes a host, but not the disk: kills the host's processes, which drops their locks. Files that only
  /// this host has written since their last sync, and whose content and status no other host has read, lose
  /// unsynced changes as `choices` decide. Bytes that another host has read are on the disk, because coherent
  /// caches write them back first. The server keeps the names.
  void crash_host(std::uint64_t host, Choices& choices);

  /// Called after each change of the disk, with the name of the change, under the model's mutex.
  using Observer = std::function<void(std::string_view what, const DiskImage& image)>;
  void observe(Observer observer) { observer_ = std::move(observer); }

 private:
  friend class DiskProcess;
  friend class DiskFile;

  void changed(std::string_view what) {
    if (observer_) observer_(what, image_);
  }
  void note_write(InodeNumber inode, const DiskProcess& process);
  void note_look(InodeNumber inode, const DiskProcess& process);
  void mirror(InodeNumber inode, std::uint64_t offset, std::uint64_t size_bytes);
  void mirror_size(InodeNumber inode);
  int descriptor(InodeNumber inode);
  [[nodiscard]] FileStatus status(InodeNumber inode, const DiskMount& mount) const;
  /// Of a new file or directory.
  [[nodiscard]] DiskAccess access_of(const DiskUser& user, std::uint32_t permissions) const;

  const DiskOptions options_;
  mutable std::mutex mutex_;  // guards all below
  DiskImage image_;
  LockTable locks_;
  std::map<InodeNumber, UniqueFd> mirrors_;  // of mapped files: memory with their present bytes
  Observer observer_;
  LockTable::Description descriptions_ = 0;
  pid_t processes_ = 1000;
  std::vector<DiskProcess*> alive_;
  std::map<InodeNumber, std::optional<std::uint64_t>> unsynced_;  // the writing host; nothing: several hosts
};

/// Any thread may call. Files must not outlive their process.
class DiskProcess final : public Storage, public MemberStorage {
 public:
  ~DiskProcess() override;

  /// kill -9: drops the locks and the files without a name; written bytes stay. Every later call, also on
  /// open files, fails with EIO and does nothing, so that the calling code may unwind.
  void kill();
  [[nodiscard]] bool is_dead() const;
  [[nodiscard]] pid_t id() const { return id_; }

  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, Access access) override;
  Result<std::unique_ptr<File>> open_no_link(const std::filesystem::path& path, Access access) override {
    return open(path, access);  // the model has no links
  }
  Result<std::unique_ptr<File>> create_unnamed(const std::filesystem::path& fallback) override;
  Result<void> publish(File& file, const std::filesystem::path& path) override;
  Result<void> remove(const std::filesystem::path& path) override;
  Result<void> check_replaceable(const std::filesystem::path& path) override;
  Result<std::unique_ptr<File>> create(const std::filesystem::path& path, mode_t mode) override;
  Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to,
                      bool replaces) override;
  Result<void> copy_attributes(const std::filesystem::path& from, File& to) override;
  Result<void> copy_attributes(const File& from, File& to) override;
  Result<void> sync_directory(const std::filesystem::path& directory) override;
  Result<bool> make_directory(const std::filesystem::path& path) override;
  Result<void> remove_directory(const std::filesystem::path& path) override;
  /// Takes a lock of the real system on the memory that mirrors the file.
  Result<std::optional<UniqueFd>> try_flock(const std::filesystem::path& path, LockKind kind) override;
  Result<std::vector<std::string>> list(const std::filesystem::path& directory,
                                        const std::string& prefix) override;
  Result<FileStatus> status(const std::filesystem::path& path) override;
  [[nodiscard]] Boot boot() const override { return mount_.boot; }
  /// Knows the users that have ever started a process.
  [[nodiscard]] Membership membership(std::uint32_t user, std::uint32_t group) const override;
  [[nodiscard]] std::uint32_t user() const override { return user_.uid; }

 private:
  friend class DiskModel;
  friend class DiskFile;
  DiskProcess(DiskModel& model, pid_t id, const DiskUser& user, const DiskMount& mount)
      : model_(model), id_(id), user_(user), mount_(mount) {}
  [[nodiscard]] Result<void> alive(std::string_view action) const;
  /// The model's mutex is held.
  void die();
  /// Fails if the process is dead, or lacks one of the `wanted` permissions on the directory.
  [[nodiscard]] Result<void> may_in_directory(std::uint32_t wanted, std::string_view action) const;

  DiskModel& model_;
  const pid_t id_;
  const DiskUser user_;
  const DiskMount mount_;
  bool is_dead_ = false;  // guarded by the model's mutex
};

}  // namespace stfs::test
