#include "tests/support/disk_file.h"

#include <algorithm>
#include <vector>

#include "tests/support/allocation_faults.h"

namespace stfs::test {

DiskFile::~DiskFile() {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  model_.locks_.drop_description(description_);
  // A storage without unnamed files gives a file a fallback name, and removes the name with the file.
  if (naming_ != Naming::Fallback || process_.is_dead_ || model_.image_.inode_at(path_) != inode_) return;
  model_.image_.remove(path_);
  model_.changed("remove");
}

Result<void> DiskFile::alive(std::string_view action) const {
  if (auto ok = process_.alive(action); !ok) return ok;
  const int removed_errno = model_.options_.removed_errno;
  if (removed_errno == 0 || naming_ != Naming::Named || model_.image_.links(inode_) > 0) return {};
  return fail_system(removed_errno, path_, action);
}

Result<void> DiskFile::may_write(std::string_view action) const {
  if (auto ok = alive(action); !ok) return ok;
  if (access_ == Access::ReadOnly) return fail_system(EBADF, path_, action);
  return {};
}

Result<void> DiskFile::read(std::span<std::byte> to, std::uint64_t offset) const {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("read"); !ok) return ok;
  model_.note_look(inode_, process_);
  if (model_.image_.read(inode_, offset, to)) return {};
  return fail(ErrorCode::ArchiveCut, EIO, path_ + ": the file ends early");
}

Result<void> DiskFile::write(std::span<const std::byte> from, std::uint64_t offset) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = may_write("write"); !ok) return ok;
  model_.note_write(inode_, process_);
  model_.image_.write(inode_, offset, from);
  model_.mirror(inode_, offset, from.size());
  model_.changed("write");
  return {};
}

Result<void> DiskFile::clone_from(const File& source, std::uint64_t source_offset, ByteRange range) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = may_write("clone"); !ok) return ok;
  const auto* from = dynamic_cast<const DiskFile*>(&source);
  if (!model_.options_.has_clone || from == nullptr) return fail_system(EOPNOTSUPP, path_, "clone");
  const std::uint64_t source_size = model_.image_.size_bytes(from->inode_);
  const bool is_aligned = source_offset % kDiskBlockBytes == 0 && range.offset % kDiskBlockBytes == 0 &&
                          range.size_bytes % kDiskBlockBytes == 0;
  if (!is_aligned || source_offset + range.size_bytes > source_size)
    return fail_system(EINVAL, path_, "clone");
  model_.note_write(inode_, process_);
  model_.image_.clone(inode_, range.offset, from->inode_, source_offset, range.size_bytes);
  model_.mirror(inode_, range.offset, range.size_bytes);
  model_.changed("clone");
  return {};
}

Result<void> DiskFile::reserve(ByteRange) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  return may_write("reserve space");
}

Result<void> DiskFile::resize(std::uint64_t size_bytes) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = may_write("resize"); !ok) return ok;
  model_.note_write(inode_, process_);
  model_.image_.resize(inode_, size_bytes);
  model_.mirror_size(inode_);
  model_.changed("resize");
  return {};
}

Result<void> DiskFile::punch(ByteRange range) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = may_write("punch"); !ok) return ok;
  const std::uint64_t end = std::min(range.end(), model_.image_.size_bytes(inode_));
  if (range.offset >= end) return {};
  model_.note_write(inode_, process_);
  model_.image_.write(inode_, range.offset, std::vector<std::byte>(end - range.offset));
  model_.mirror(inode_, range.offset, end - range.offset);
  model_.changed("punch");
  return {};
}

Result<void> DiskFile::sync() {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("sync"); !ok) return ok;
  model_.image_.sync(inode_);
  model_.unsynced_.erase(inode_);
  model_.changed("sync");
  return {};
}

void DiskFile::fail_sync() {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (process_.is_dead_) return;
  model_.image_.fail_sync(inode_);
  model_.changed("failed sync");
}

Result<FileStatus> DiskFile::status() const {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("stat"); !ok) return pass_on(std::move(ok));
  model_.note_look(inode_, process_);
  return model_.status(inode_, process_.mount_);
}

Result<std::optional<LockConflict>> DiskFile::try_lock(ByteRange range, LockKind kind) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("lock"); !ok) return pass_on(std::move(ok));
  if (!model_.options_.has_locks) return fail_system(ENOLCK, path_, "lock");
  // As fcntl: a shared lock needs a descriptor that reads, an exclusive lock one that writes.
  if (kind == LockKind::Exclusive && access_ == Access::ReadOnly) return fail_system(EBADF, path_, "lock");
  if (model_.locks_.take(inode_, description_, process_.id_, range, kind))
    return std::optional<LockConflict>();
  return std::optional<LockConflict>(std::in_place);
}

void DiskFile::unlock(ByteRange range) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (!process_.is_dead_) model_.locks_.give_back(inode_, description_, range);
}

Result<bool> DiskFile::is_locked_by_other(ByteRange range, LockKind kind) const {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("look for a lock"); !ok) return pass_on(std::move(ok));
  if (!model_.options_.has_locks) return fail_system(ENOLCK, path_, "look for a lock");
  return model_.locks_.has_conflict(inode_, description_, range, kind);
}

std::optional<pid_t> DiskFile::lock_holder(ByteRange range) const {
  const std::scoped_lock lock(model_.mutex_);
  return model_.locks_.holder(inode_, description_, range);
}

Result<void> DiskFile::set_owner(std::uint32_t uid, std::uint32_t gid) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("chown"); !ok) return ok;
  const DiskAccess& now = model_.image_.at(inode_).access;
  const DiskUser& user = process_.user_;
  const bool is_allowed = user.uid == now.uid && uid == now.uid && (gid == now.gid || user.is_in(gid));
  if (!user.is_root() && !is_allowed) return fail_system(EPERM, path_, "chown");
  DiskAccess& access = model_.image_.change(inode_).access;
  access.uid = uid;
  access.gid = gid;
  model_.changed("chown");
  return {};
}

Result<void> DiskFile::set_mode(std::uint32_t permissions) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("chmod"); !ok) return ok;
  const DiskUser& user = process_.user_;
  if (!user.is_root() && user.uid != model_.image_.at(inode_).access.uid)
    return fail_system(EPERM, path_, "chmod");
  model_.image_.change(inode_).access.permissions = permissions;
  model_.changed("chmod");
  return {};
}

int DiskFile::descriptor() const {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  return model_.descriptor(inode_);
}

Result<void> DiskFile::publish(const std::string& path) {
  if (naming_ != Naming::Unnamed && naming_ != Naming::Fallback) return fail_system(ENOENT, path, "link");
  if (model_.image_.inode_at(path) != 0) return fail_system(EEXIST, path, "link");
  if (naming_ == Naming::Fallback) {
    if (model_.image_.inode_at(path_) != inode_) return fail_system(ENOENT, path, "rename");
    model_.image_.rename(path_, path);
  } else {
    model_.image_.link(inode_, path);
  }
  naming_ = Naming::WasNamed;
  return {};
}

}  // namespace stfs::test
