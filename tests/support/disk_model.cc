// Calls on the seam become changes of the image.
#include "tests/support/disk_model.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/allocation_faults.h"

namespace stfs::test {

class DiskFile final : public File, public LossyFile {
 public:
  enum class Naming : std::uint8_t { Named, Unnamed, Fallback, WasNamed };

  DiskFile(DiskProcess& process, InodeNumber inode, Access access, Naming naming, std::string path,
           LockTable::Description description)
      : process_(process),
        model_(process.model_),
        inode_(inode),
        access_(access),
        naming_(naming),
        path_(std::move(path)),
        description_(description) {}
  ~DiskFile() override {
    const NoAllocationFaults pause;
    const std::scoped_lock lock(model_.mutex_);
    model_.locks_.drop_description(description_);
  }

  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const override {
    const NoAllocationFaults pause;
    const std::scoped_lock lock(model_.mutex_);
    if (auto ok = process_.alive("read"); !ok) return ok;
    if (model_.image_.read(inode_, offset, to)) return {};
    return fail(ErrorCode::ArchiveCut, EIO, path_ + ": the file ends early");
  }

  Result<void> write(std::span<const std::byte> from, std::uint64_t offset) override {
    const NoAllocationFaults pause;
    const std::scoped_lock lock(model_.mutex_);
    if (auto ok = may_write("write"); !ok) return ok;
    model_.image_.write(inode_, offset, from);
    model_.mirror(inode_, offset, from.size());
    model_.changed("write");
    return {};
  }

  Result<void> clone_from(const File& source, std::uint64_t source_offset, ByteRange range) override {
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
    model_.image_.clone(inode_, range.offset, from->inode_, source_offset, range.size_bytes);
    model_.mirror(inode_, range.offset, range.size_bytes);
    model_.changed("clone");
    return {};
  }

  Result<void> reserve(ByteRange) override {
    const NoAllocationFaults pause;
    const std::scoped_lock lock(model_.mutex_);
    return may_write("reserve space");
  }

  Result<void> sync() override {
    const NoAllocationFaults pause;
    const std::scoped_lock lock(model_.mutex_);
    if (auto ok = process_.alive("sync"); !ok) return ok;
    model_.image_.sync(inode_);
    model_.changed("sync");
    return {};
  }
  void fail_sync() override {
    const NoAllocationFaults pause;
    const std::scoped_lock lock(model_.mutex_);
    if (process_.is_dead_) return;
    model_.image_.fail_sync(inode_);
    model_.changed("failed sync");
  }

  Result<FileStatus> status() const override {
    const NoAllocationFaults pause;
    const std::scoped_lock lock(model_.mutex_);
    if (auto ok = process_.alive("stat"); !ok) return pass_on(std::move(ok));
    return model_.status(inode_);
  }

  Result<std::optional<LockConflict>> try_lock(ByteRange range, LockKind kind) override {
    const NoAllocationFaults pause;
    const std::scoped_lock lock(model_.mutex_);
    if (auto ok = process_.alive("lock"); !ok) return pass_on(std::move(ok));
    if (!model_.options_.has_locks) return fail_system(ENOLCK, path_, "lock");
    // As fcntl: a shared lock wants a descriptor that reads, an exclusive one that writes.
    if (kind == LockKind::Exclusive && access_ == Access::ReadOnly) return fail_system(EBADF, path_, "lock");
    if (model_.locks_.take(inode_, description_, process_.id_, range, kind))
      return std::optional<LockConflict>();
    return std::optional<LockConflict>(std::in_place);
  }
  void unlock(ByteRange range) override {
    const NoAllocationFaults pause;
    const std::scoped_lock lock(model_.mutex_);
    if (!process_.is_dead_) model_.locks_.give_back(inode_, description_, range);
  }

  Result<bool> is_locked_by_other(ByteRange range, LockKind kind) const override {
    const NoAllocationFaults pause;
    const std::scoped_lock lock(model_.mutex_);
    if (auto ok = process_.alive("look for a lock"); !ok) return pass_on(std::move(ok));
    if (!model_.options_.has_locks) return fail_system(ENOLCK, path_, "look for a lock");
    return model_.locks_.has_conflict(inode_, description_, range, kind);
  }
  Result<void> set_owner(std::uint32_t uid, std::uint32_t gid) override {
    const NoAllocationFaults pause;
    const std::scoped_lock lock(model_.mutex_);
    if (auto ok = process_.alive("chown"); !ok) return ok;
    model_.image_.change(inode_).uid = uid;
    model_.image_.change(inode_).gid = gid;
    model_.changed("chown");
    return {};
  }
  Result<void> set_mode(std::uint32_t permissions) override {
    const NoAllocationFaults pause;
    const std::scoped_lock lock(model_.mutex_);
    if (auto ok = process_.alive("chmod"); !ok) return ok;
    model_.image_.change(inode_).permissions = permissions;
    model_.changed("chmod");
    return {};
  }

  std::optional<pid_t> lock_holder(ByteRange range) const override {
    const std::scoped_lock lock(model_.mutex_);
    return model_.locks_.holder(inode_, description_, range);
  }

  Striping striping() const override { return model_.options_.striping; }
  std::uint64_t free_bytes() const override { return model_.options_.free_bytes; }
  bool has_staged_name() const override { return naming_ == Naming::Fallback; }

  int descriptor() const override {
    const NoAllocationFaults pause;
    const std::scoped_lock lock(model_.mutex_);
    return model_.descriptor(inode_);
  }

  /// As linkat, which works once; with a fallback name as rename.
  Result<void> publish(const std::string& path) {
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

 private:
  Result<void> may_write(std::string_view action) const {
    if (auto ok = process_.alive(action); !ok) return ok;
    if (access_ == Access::ReadOnly) return fail_system(EBADF, path_, action);
    return {};
  }

  DiskProcess& process_;
  DiskModel& model_;
  const InodeNumber inode_;
  const Access access_;
  Naming naming_;
  const std::string path_;
  const LockTable::Description description_;
};

std::unique_ptr<DiskProcess> DiskModel::start_process() {
  const std::scoped_lock lock(mutex_);
  return std::unique_ptr<DiskProcess>(new DiskProcess(*this, ++processes_));
}

DiskImage DiskModel::image() const {
  const std::scoped_lock lock(mutex_);
  return image_;
}

bool DiskModel::has_locks_held() const {
  const std::scoped_lock lock(mutex_);
  return !locks_.empty();
}

InodeNumber DiskModel::put(std::string_view path, std::span<const std::byte> content) {
  const std::scoped_lock lock(mutex_);
  const InodeNumber inode = image_.create();
  image_.write(inode, 0, content);
  image_.sync(inode);
  image_.link(inode, path);
  image_.sync_names(path.substr(0, path.rfind('/')));
  return inode;
}

void DiskModel::mirror(InodeNumber inode, std::uint64_t offset, std::uint64_t size_bytes) {
  const auto known = mirrors_.find(inode);
  if (known == mirrors_.end()) return;
  std::vector<std::byte> bytes(size_bytes);
  if (!image_.read(inode, offset, bytes)) return;
  static_cast<void>(::pwrite(known->second.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset)));
}

int DiskModel::descriptor(InodeNumber inode) {
  const auto known = mirrors_.find(inode);
  if (known != mirrors_.end()) return known->second.get();
  const int fd = ::memfd_create("disk model", MFD_CLOEXEC);
  mirrors_.emplace(inode, UniqueFd(fd));
  mirror(inode, 0, image_.size_bytes(inode));
  return fd;
}

FileStatus DiskModel::status(InodeNumber inode) const {
  const DiskInode& file = image_.at(inode);
  return {.identity = {.device = options_.device,
                       .inode = inode,
                       .size_bytes = file.size_bytes.now(),
                       .mtime_ns = file.mtime_ns},
          .birth_ns = options_.has_birth_times ? file.birth_ns : 0,
          .mode = S_IFREG | file.permissions,
          .uid = file.uid,
          .gid = file.gid,
          .links = image_.links(inode)};
}

void DiskProcess::kill() {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (is_dead_) return;
  is_dead_ = true;
  model_.locks_.drop_process(id_);
}

bool DiskProcess::is_dead() const {
  const std::scoped_lock lock(model_.mutex_);
  return is_dead_;
}

Result<void> DiskProcess::alive(std::string_view action) const {
  if (is_dead_) return fail_system(EIO, "killed process", action);
  return {};
}

Result<std::unique_ptr<File>> DiskProcess::open(const std::filesystem::path& path, Access access) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("open"); !ok) return pass_on(std::move(ok));
  const InodeNumber inode = model_.image_.inode_at(path.native());
  if (inode == 0) return fail_system(ENOENT, path.native(), "open");
  return std::make_unique<DiskFile>(*this, inode, access, DiskFile::Naming::Named, path.native(),
                                    ++model_.descriptions_);
}

Result<std::unique_ptr<File>> DiskProcess::create_unnamed(const std::filesystem::path& fallback) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("create"); !ok) return pass_on(std::move(ok));
  const bool is_unnamed = model_.options_.has_unnamed;
  if (!is_unnamed && model_.image_.inode_at(fallback.native()) != 0) {
    return fail_system(EEXIST, fallback.native(), "create");
  }
  const InodeNumber inode = model_.image_.create();
  if (!is_unnamed) model_.image_.link(inode, fallback.native());
  model_.changed("create");
  return std::make_unique<DiskFile>(*this, inode, Access::ReadWrite,
                                    is_unnamed ? DiskFile::Naming::Unnamed : DiskFile::Naming::Fallback,
                                    fallback.native(), ++model_.descriptions_);
}

Result<void> DiskProcess::publish(File& file, const std::filesystem::path& path) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("link"); !ok) return ok;
  auto* ours = dynamic_cast<DiskFile*>(&file);
  if (ours == nullptr) return fail_system(EXDEV, path.native(), "link");
  auto published = ours->publish(path.native());
  if (published) model_.changed("publish");
  return published;
}

Result<void> DiskProcess::remove(const std::filesystem::path& path) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("remove"); !ok) return ok;
  if (model_.image_.inode_at(path.native()) == 0) return fail_system(ENOENT, path.native(), "remove");
  model_.image_.remove(path.native());
  model_.changed("remove");
  return {};
}

Result<void> DiskProcess::sync_directory(const std::filesystem::path& directory) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("sync directory"); !ok) return ok;
  model_.image_.sync_names(directory.native());
  model_.changed("sync directory");
  return {};
}

Result<std::vector<std::string>> DiskProcess::list(const std::filesystem::path& directory,
                                                   const std::string& prefix) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("list"); !ok) return pass_on(std::move(ok));
  const std::string start = directory.native() + "/" + prefix;
  std::vector<std::string> found;
  for (const DiskName& name : model_.image_.names()) {
    if (name.path.now() && name.path.now()->starts_with(start)) {
      found.push_back(name.path.now()->substr(directory.native().size() + 1));
    }
  }
  return found;
}

Result<FileStatus> DiskProcess::status(const std::filesystem::path& path) {
  const NoAllocationFaults pause;
  const std::scoped_lock lock(model_.mutex_);
  if (auto ok = alive("stat"); !ok) return pass_on(std::move(ok));
  const InodeNumber inode = model_.image_.inode_at(path.native());
  if (inode == 0) return fail_system(ENOENT, path.native(), "stat");
  return model_.status(inode);
}

}  // namespace stfs::test
