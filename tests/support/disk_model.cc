#include "tests/support/disk_model.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "tests/support/allocation_faults.h"
#include "tests/support/disk_crash.h"
#include "tests/support/disk_file.h"

namespace stfs::test {
namespace {

/// The user database of all hosts: all users that have ever started a process, also before a crash.
class KnownUsers {
 public:
  void note(const DiskUser& user) {
    const std::scoped_lock lock(mutex_);
    users_.insert_or_assign(user.uid, user);
  }
  [[nodiscard]] Membership membership(std::uint32_t user, std::uint32_t group) {
    const std::scoped_lock lock(mutex_);
    const auto known = users_.find(user);
    if (known == users_.end()) return Membership::Unknown;
    return known->second.is_in(group) ? Membership::Member : Membership::NoMember;
  }

 private:
  std::mutex mutex_;  // guards users_
  std::map<std::uint32_t, DiskUser> users_;
};

KnownUsers& known_users() {
  static KnownUsers users;
  return users;
}

}  // namespace

std::unique_ptr<DiskProcess> DiskModel::start_process(const DiskUser& user) {
  return start_process(user, options_.mount());
}

std::unique_ptr<DiskProcess> DiskModel::start_process(const DiskUser& user, const DiskMount& mount) {
  const std::scoped_lock lock(mutex_);
  std::unique_ptr<DiskProcess> process(new DiskProcess(*this, ++processes_, user, mount));
  alive_.push_back(process.get());
  known_users().note(user);
  return process;
}

DiskImage DiskModel::image() const {
  const std::scoped_lock lock(mutex_);
  return image_;
}

bool DiskModel::has_locks_held() const {
  const std::scoped_lock lock(mutex_);
  return !locks_.empty();
}

InodeNumber DiskModel::put(std::string_view path, std::span<const std::byte> content,
                           const DiskAccess& access) {
  std::unique_lock lock(mutex_);
  const InodeNumber inode = image_.create(access);
  image_.write(inode, 0, content);
  image_.sync(inode);
  lock.unlock();
  link(inode, path);
  return inode;
}

InodeNumber DiskModel::replace(std::string_view path, std::span<const std::byte> content,
                               const DiskAccess& access) {
  const std::scoped_lock lock(mutex_);
  const InodeNumber inode = image_.create(access);
  image_.write(inode, 0, content);
  image_.sync(inode);
  if (image_.inode_at(path) != 0) image_.remove(path);
  image_.link(inode, path);
  image_.sync_names(path.substr(0, path.rfind('/')));
  return inode;
}

void DiskModel::link(InodeNumber inode, std::string_view path) {
  const std::scoped_lock lock(mutex_);
  image_.link(inode, path);
  image_.sync_names(path.substr(0, path.rfind('/')));
}

void DiskModel::crash_host(std::uint64_t host, Choices& choices) {
  const std::scoped_lock lock(mutex_);
  for (DiskProcess* process : std::vector(alive_)) {
    if (process->mount_.boot.host == host) process->die();
  }
  std::vector<InodeNumber> written;
  for (const auto& [inode, by] : unsynced_) {
    if (by == host) written.push_back(inode);
  }
  image_ = after_host_crash(image_, written, choices, options_.has_stale_blocks);
  for (const InodeNumber inode : written) {
    unsynced_.erase(inode);
    mirror_size(inode);
    mirror(inode, 0, image_.size_bytes(inode));
  }
  changed("crash of a host");
}

void DiskModel::note_write(InodeNumber inode, const DiskProcess& process) {
  const std::uint64_t host = process.mount_.boot.host;
  const auto [known, is_new] = unsynced_.try_emplace(inode, host);
  if (!is_new && known->second != host) known->second.reset();
}

void DiskModel::note_look(InodeNumber inode, const DiskProcess& process) {
  const auto known = unsynced_.find(inode);
  if (known != unsynced_.end() && known->second != process.mount_.boot.host) known->second.reset();
}

void DiskModel::mirror(InodeNumber inode, std::uint64_t offset, std::uint64_t size_bytes) {
  const auto known = mirrors_.find(inode);
  if (known == mirrors_.end()) return;
  std::vector<std::byte> bytes(size_bytes);
  if (!image_.read(inode, offset, bytes)) return;
  static_cast<void>(::pwrite(known->second.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)));
}

void DiskModel::mirror_size(InodeNumber inode) {
  const auto known = mirrors_.find(inode);
  if (known == mirrors_.end()) return;
  static_cast<void>(::ftruncate(known->second.get(), static_cast<off_t>(image_.size_bytes(inode))));
}

int DiskModel::descriptor(InodeNumber inode) {
  const auto known = mirrors_.find(inode);
  if (known != mirrors_.end()) return known->second.get();
  const int fd = ::memfd_create("disk model", MFD_CLOEXEC);
  mirrors_.emplace(inode, UniqueFd(fd));
  mirror(inode, 0, image_.size_bytes(inode));
  return fd;
}

FileStatus DiskModel::status(InodeNumber inode, const DiskMount& mount) const {
  const DiskInode& file = image_.at(inode);
  return {.identity = {.device = mount.device,
                       .inode = inode,
                       .size_bytes = file.size_bytes.now(),
                       .mtime_ns = file.mtime_ns},
          .birth_ns = mount.has_birth_times ? file.birth_ns : 0,
          .mode = (file.is_directory ? S_IFDIR : S_IFREG) | file.access.permissions,
          .uid = file.access.uid,
          .gid = file.access.gid,
          .links = image_.links(inode)};
}

DiskAccess DiskModel::access_of(const DiskUser& user, std::uint32_t permissions) const {
  const bool inherits_group = (options_.directory.permissions & kSetGroupId) != 0;
  return {
      .uid = user.uid, .gid = inherits_group ? options_.directory.gid : user.gid, .permissions = permissions};
}

Membership DiskProcess::membership(std::uint32_t user, std::uint32_t group) const {
  return known_users().membership(user, group);
}

DiskProcess::~DiskProcess() {
  kill();
}

void DiskProcess::kill() {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  die();
}

void DiskProcess::die() {
  if (is_dead_) return;
  is_dead_ = true;
  model_.locks_.drop_process(id_);
  std::erase(model_.alive_, this);
}

bool DiskProcess::is_dead() const {
  const std::scoped_lock lock(model_.mutex_);
  return is_dead_;
}

Result<void> DiskProcess::alive(std::string_view action) const {
  if (is_dead_) return fail_system(EIO, "killed process", action);
  return {};
}

Result<void> DiskProcess::may_in_directory(std::uint32_t wanted, std::string_view action) const {
  if (auto ok = alive(action); !ok) return ok;
  if (permits(model_.options_.directory, user_, wanted)) return {};
  return fail_system(EACCES, "the directory", action);
}

Result<std::unique_ptr<File>> DiskProcess::open(const std::filesystem::path& path, Access access) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = may_in_directory(kMaySearch, "open"); !ok) return pass_on(std::move(ok));
  const InodeNumber inode = model_.image_.inode_at(path.native());
  if (inode == 0) return fail_system(ENOENT, path.native(), "open");
  if (model_.image_.at(inode).is_directory) return fail_system(EISDIR, path.native(), "open");
  const std::uint32_t wanted = access == Access::ReadOnly ? kMayRead : kMayRead | kMayWrite;
  if (!permits(model_.image_.at(inode).access, user_, wanted))
    return fail_system(EACCES, path.native(), "open");
  return std::make_unique<DiskFile>(*this, inode, access, DiskFile::Naming::Named, path.native(),
                                    ++model_.descriptions_);
}

Result<std::unique_ptr<File>> DiskProcess::create_unnamed(const std::filesystem::path& fallback) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = may_in_directory(kMaySearch | kMayWrite, "create"); !ok) return pass_on(std::move(ok));
  const bool is_unnamed = model_.options_.has_unnamed;
  if (!is_unnamed && model_.image_.inode_at(fallback.native()) != 0) {
    return fail_system(EEXIST, fallback.native(), "create");
  }
  const InodeNumber inode = model_.image_.create(model_.access_of(user_, 0600));
  if (!is_unnamed) model_.image_.link(inode, fallback.native());
  model_.changed("create");
  return std::make_unique<DiskFile>(*this, inode, Access::ReadWrite,
                                    is_unnamed ? DiskFile::Naming::Unnamed : DiskFile::Naming::Fallback,
                                    fallback.native(), ++model_.descriptions_);
}

Result<void> DiskProcess::check_replaceable(const std::filesystem::path&) {
  const std::scoped_lock lock(model_.mutex_);
  return may_in_directory(kMaySearch | kMayWrite, "replace");
}

Result<std::unique_ptr<File>> DiskProcess::create(const std::filesystem::path& path, mode_t mode) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = may_in_directory(kMaySearch | kMayWrite, "create"); !ok) return pass_on(std::move(ok));
  if (model_.image_.inode_at(path.native()) != 0) return fail_system(EEXIST, path.native(), "create");
  const InodeNumber inode = model_.image_.create(model_.access_of(user_, mode));
  model_.image_.link(inode, path.native());
  model_.changed("create");
  return std::make_unique<DiskFile>(*this, inode, Access::ReadWrite, DiskFile::Naming::Named, path.native(),
                                    ++model_.descriptions_);
}

Result<void> DiskProcess::rename(const std::filesystem::path& from, const std::filesystem::path& to,
                                 bool replaces) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = may_in_directory(kMaySearch | kMayWrite, "rename"); !ok) return ok;
  if (model_.image_.inode_at(from.native()) == 0) return fail_system(ENOENT, from.native(), "rename");
  const bool is_taken = model_.image_.inode_at(to.native()) != 0;
  if (is_taken && !replaces) return fail_system(EEXIST, to.native(), "rename");
  model_.image_.rename(from.native(), to.native());
  model_.changed("rename");
  return {};
}

Result<void> DiskProcess::copy_attributes(const std::filesystem::path& from, File& to) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("copy attributes"); !ok) return ok;
  const InodeNumber inode = model_.image_.inode_at(from.native());
  auto* ours = dynamic_cast<DiskFile*>(&to);
  if (inode == 0 || ours == nullptr) return fail_system(ENOENT, from.native(), "copy attributes");
  model_.image_.change(ours->inode()).access = model_.image_.at(inode).access;
  model_.changed("copy attributes");
  return {};
}

Result<void> DiskProcess::copy_attributes(const File& from, File& to) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("copy attributes"); !ok) return ok;
  const auto* theirs = dynamic_cast<const DiskFile*>(&from);
  auto* ours = dynamic_cast<DiskFile*>(&to);
  if (theirs == nullptr || ours == nullptr) return fail_system(ENOENT, "a file", "copy attributes");
  model_.image_.change(ours->inode()).access = model_.image_.at(theirs->inode()).access;
  model_.changed("copy attributes");
  return {};
}

Result<void> DiskProcess::publish(File& file, const std::filesystem::path& path) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = may_in_directory(kMaySearch | kMayWrite, "link"); !ok) return ok;
  auto* ours = dynamic_cast<DiskFile*>(&file);
  if (ours == nullptr) return fail_system(EXDEV, path.native(), "link");
  auto published = ours->publish(path.native());
  if (published) model_.changed("publish");
  return published;
}

Result<void> DiskProcess::remove(const std::filesystem::path& path) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = may_in_directory(kMaySearch | kMayWrite, "remove"); !ok) return ok;
  const InodeNumber inode = model_.image_.inode_at(path.native());
  if (inode == 0) return fail_system(ENOENT, path.native(), "remove");
  const DiskAccess& directory = model_.options_.directory;
  const bool is_owner = user_.uid == directory.uid || user_.uid == model_.image_.at(inode).access.uid;
  if ((directory.permissions & kSticky) != 0 && !user_.is_root() && !is_owner)
    return fail_system(EPERM, path.native(), "remove");
  model_.image_.remove(path.native());
  model_.changed("remove");
  return {};
}

Result<void> DiskProcess::sync_directory(const std::filesystem::path& directory) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = may_in_directory(kMayRead, "sync directory"); !ok) return ok;
  std::string normal = directory.lexically_normal().native();  // without ".."
  if (normal.size() > 1 && normal.ends_with('/')) normal.pop_back();
  model_.image_.sync_names(normal);
  model_.changed("sync directory");
  return {};
}

Result<bool> DiskProcess::make_directory(const std::filesystem::path& path) {
  const auto there = status(path);
  if (there && !S_ISDIR(there->mode)) return fail_system(EEXIST, path.native(), "make the directory");
  if (there) return false;
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = may_in_directory(kMaySearch | kMayWrite, "make the directory"); !ok)
    return pass_on(std::move(ok));
  model_.image_.make_directory(path.native(), model_.access_of(user_, 0755));
  model_.changed("make directory");
  return true;
}

Result<void> DiskProcess::remove_directory(const std::filesystem::path& path) {
  const auto names = list(path, "");
  if (!names) return tl::unexpected(names.error());
  if (!names->empty()) return fail_system(ENOTEMPTY, path.native(), "remove the directory");
  return remove(path);
}

Result<std::optional<UniqueFd>> DiskProcess::try_flock(const std::filesystem::path& path, LockKind kind) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = may_in_directory(kMaySearch, "lock"); !ok) return pass_on(std::move(ok));
  const InodeNumber inode = model_.image_.inode_at(path.native());
  if (inode == 0) return fail_system(ENOENT, path.native(), "lock");
  // This opens another open file description, because each description has its separate lock.
  const std::string stands_in = fmt::format("/proc/self/fd/{}", model_.descriptor(inode));
  UniqueFd fd(::open(stands_in.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_system(errno, path.native(), "lock");
  if (::flock(fd.get(), (kind == LockKind::Shared ? LOCK_SH : LOCK_EX) | LOCK_NB) == 0)
    return std::optional(std::move(fd));
  return std::optional<UniqueFd>();
}

Result<std::vector<std::string>> DiskProcess::list(const std::filesystem::path& directory,
                                                   const std::string& prefix) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = may_in_directory(kMayRead, "list"); !ok) return pass_on(std::move(ok));
  const std::string start = directory.native() + "/" + prefix;
  std::vector<std::string> found;
  for (const DiskName& name : model_.image_.names()) {
    if (!name.path.now() || !name.path.now()->starts_with(start)) continue;
    std::string entry = name.path.now()->substr(directory.native().size() + 1);
    if (entry.find('/') == std::string::npos)
      found.push_back(std::move(entry));  // other entries are in directories below
  }
  return found;
}

Result<FileStatus> DiskProcess::status(const std::filesystem::path& path) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = may_in_directory(kMaySearch, "stat"); !ok) return pass_on(std::move(ok));
  const InodeNumber inode = model_.image_.inode_at(path.native());
  if (inode != 0) return model_.status(inode, mount_);
  const std::string below = path.native().ends_with('/') ? path.native() : path.native() + "/";
  const auto lies_below = [&](const DiskName& name) {
    return name.path.now() && name.path.now()->starts_with(below);
  };
  if (std::ranges::none_of(model_.image_.names(), lies_below))
    return fail_system(ENOENT, path.native(), "stat");
  const DiskAccess& directory = model_.options_.directory;
  FileStatus status;
  status.mode = S_IFDIR | directory.permissions;
  status.uid = directory.uid;
  status.gid = directory.gid;
  return status;
}

}  // namespace stfs::test
