#include "fs/model/served_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/mutex.h"
#include "core/storage/group_members.h"

namespace stfs {
namespace {

constexpr mode_t kReadBits = 0444;
constexpr mode_t kWriteBits = 0222;

/// Returns the permissions of a file in a layer below a delta. A user may read the file if file and delta
/// allow it. A user may write the file if the user may read it and the delta lets the user write: the change
/// goes to a copy.
/// @param is_copied  false: the file is changed in place, so the file itself must also let the user write.
Permissions over(Permissions file, Permissions delta, bool is_directory, bool is_copied) {
  constexpr unsigned kReadToWrite = 1;
  constexpr unsigned kReadToSearch = 2;
  if (is_copied) file.mode = (file.mode & ~kWriteBits) | (file.mode & kReadBits) >> kReadToWrite;
  if (is_directory) delta.mode |= (delta.mode & kReadBits) >> kReadToSearch;
  return strictest(delta, file);
}

}  // namespace

Result<struct stat> ServedFiles::attributes(const Node& node) const {
  const auto shown = tree_.attributes(node.ino);
  RETURN_IF_ERROR(shown);
  struct stat st = shown->status;
  Permissions allowed = shown->permissions;
  if (has_delta()) {
    allowed = over(allowed, delta_permissions_(), node.is_directory(), !shown->is_private_own);
  }
  const bool may_change_names = !node.is_directory() || options_.allows_edits;
  if (options_.is_read_only || !may_change_names) allowed.mode &= ~kWriteBits;
  constexpr mode_t kKept = S_IFMT | S_ISVTX;
  st.st_mode = (st.st_mode & kKept) | (allowed.mode & ~options_.umask);
  st.st_uid = options_.uid.value_or(allowed.uid);
  st.st_gid = options_.gid.value_or(allowed.gid);
  st.st_ino = node.ino;
  return st;
}

Result<void> ServedFiles::check_writable() const {
  if (options_.is_read_only) return fail(ErrorCode::ReadOnly, EROFS, "mounted read-only");
  return {};
}

Result<UserCounts::Share> ServedFiles::share_of(uid_t user) {
  return is_unlimited(user) ? UserCounts::Share() : open_files_.take(user);
}

Result<SourceChanges::Name> ServedFiles::name_in(const Node& directory, std::string_view name) const {
  RETURN_IF_ERROR(check_writable());
  if (!options_.allows_edits) {
    return fail(ErrorCode::InvalidArgument, EPERM,
                "mounted with edit=off: nothing can be made, moved or removed here");
  }
  auto path = tree_.path_of(directory.ino);
  RETURN_IF_ERROR(path);
  if (!path->empty()) *path += '/';
  path->append(name);
  if (is_entry_name(name) && tree_.files().is_shown(*path))
    return SourceChanges::Name{std::move(*path), tree_.identity_of(directory.ino)};
  return fail(
      ErrorCode::InvalidArgument, EPERM,
      fmt::format("{}: archives, their indexes, and files of safetensorsfs itself are not made, moved or "
                  "removed here",
                  *path));
}

Result<ServedFiles::Writer> ServedFiles::writer(const Node& node, bool keeps_bytes) {
  RETURN_IF_ERROR(check_writable());
  MutexLock lock(mutex_);
  // The time of a copy depends on the size of the file, so only requests on the same file wait.
  opened_.wait(mutex_, [&]() REQUIRES(mutex_) { return !opening_.contains(node.ino); });
  if (const auto known = writers_.find(node.ino); known != writers_.end()) return known->second.file;
  opening_.insert(node.ino);
  lock.unlock();
  auto writer = guard_memory([&] { return open_writer(node, keeps_bytes); });
  lock.lock();
  opening_.erase(node.ino);
  opened_.notify_all();
  RETURN_IF_ERROR(writer);
  return writers_.insert_or_assign(node.ino, std::move(*writer)).first->second.file;
}

Result<ServedFiles::OpenWriter> ServedFiles::open_writer(const Node& node, bool keeps_bytes) {
  auto share = share_of(requesting_user());
  RETURN_IF_ERROR(share);
  const auto path = tree_.path_of(node.ino);
  RETURN_IF_ERROR(path);
  auto own = changes_.open(*path, tree_.identity_of(node.ino), keeps_bytes);
  RETURN_IF_ERROR(own);
  if (own->is_copy) tree_.note_copied(node.ino, own->identity);
  return OpenWriter{std::make_shared<const UniqueFd>(std::move(own->file)), std::move(*share)};
}

Result<void> ServedFiles::open(const Node& node, int flags) {
  if ((flags & O_ACCMODE) == O_RDONLY) {
    auto opened = tree_.reader(node.ino);
    return opened ? Result<void>() : pass_on(std::move(opened));
  }
  RETURN_IF_ERROR(check_writable());
  const auto path = tree_.path_of(node.ino);
  RETURN_IF_ERROR(path);
  const auto found = tree_.files().find(*path);
  RETURN_IF_ERROR(found);
  {
    const MutexLock lock(mutex_);
    ++opens_[node.ino];
  }
  if (!found->is_own) return {};  // the first change copies it
  auto opened = guard_memory([&] { return writer(node); });
  if (opened) return {};
  release(node);
  return pass_on(std::move(opened));
}

void ServedFiles::release(const Node& node) {
  {
    const MutexLock lock(mutex_);
    const auto open = opens_.find(node.ino);
    if (open != opens_.end() && --open->second == 0) opens_.erase(open);
  }
  end_unused(node.ino);
}

void ServedFiles::end_unused(Ino ino) {
  OpenWriter ended;  // declared first, so closed without the mutex
  const MutexLock lock(mutex_);
  const auto known = writers_.find(ino);
  if (known == writers_.end() || opens_.contains(ino)) return;
  ended = std::move(known->second);
  writers_.erase(known);
}

Result<Bytes> ServedFiles::read(const Node& node, std::uint64_t offset, std::size_t size_bytes) const {
  const auto opened = tree_.reader(node.ino);
  RETURN_IF_ERROR(opened);
  std::vector<std::byte> bytes = Bytes::buffer(size_bytes);
  std::size_t done = 0;
  while (done < size_bytes) {
    const ssize_t count =
        ::pread((*opened)->get(), bytes.data() + done, size_bytes - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail_system(errno, "a file of the source directory", "read");
    if (count == 0) break;
    done += static_cast<std::size_t>(count);
  }
  bytes.resize(done);
  return Bytes(std::move(bytes));
}

Result<void> ServedFiles::write(const Node& node, std::span<const std::byte> from, std::uint64_t offset,
                                int flags) {
  const auto opened = writer(node);
  RETURN_IF_ERROR(opened);
  const int how = ((flags & O_APPEND) != 0 ? RWF_APPEND : 0) | ((flags & O_DSYNC) != 0 ? RWF_DSYNC : 0);
  while (!from.empty()) {
    struct iovec part {};
    part.iov_base = const_cast<std::byte*>(from.data());
    part.iov_len = from.size();
    const ssize_t count = ::pwritev2((*opened)->get(), &part, 1, static_cast<off_t>(offset), how);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail_system(errno, "a file of the source directory", "write");
    from = from.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
  return {};
}

Result<void> ServedFiles::resize(const Node& node, std::uint64_t size_bytes) {
  const auto opened = writer(node, size_bytes != 0);
  RETURN_IF_ERROR(opened);
  const int error = ::ftruncate((*opened)->get(), static_cast<off_t>(size_bytes)) == 0 ? 0 : errno;
  end_unused(node.ino);
  if (error == 0) return {};
  return fail_system(error, "a file of the source directory", "resize");
}

Result<ServedFiles::Writer> ServedFiles::changeable(const Node& node) {
  const auto path = tree_.path_of(node.ino);
  RETURN_IF_ERROR(path);
  if (node.is_directory()) {
    auto opened = changes_.open_directory(*path, tree_.identity_of(node.ino));
    RETURN_IF_ERROR(opened);
    return std::make_shared<const UniqueFd>(std::move(*opened));
  }
  const auto found = tree_.files().find(*path);
  // The owner may change the mode of a file even if the file can't be opened for writing.
  if (found && found->is_own && found->entry.file) {
    auto opened = tree_.reader(node.ino);
    if (opened) return opened;
  }
  auto opened = writer(node);
  end_unused(node.ino);  // the caller keeps it for the length of the change
  return opened;
}

Result<void> ServedFiles::check_owner(const struct stat& status) const {
  const uid_t user = requesting_user();
  if (is_unlimited(user) || is_same_user(user, status.st_uid)) return {};
  return fail(ErrorCode::System, EPERM,
              fmt::format("belongs to user {}, who alone may change its mode and its owner", status.st_uid));
}

Result<void> ServedFiles::change(const Node& node, const Change& change) {
  RETURN_IF_ERROR(check_writable());
  // The kernel lets a program set the owner and the group that are shown already. With uid= or gid= the file
  // has another owner, and keeps it.
  constexpr std::uint32_t kSame = ~std::uint32_t{0};
  const uid_t uid = change.uid && change.uid != options_.uid ? *change.uid : kSame;
  const gid_t gid = change.gid && change.gid != options_.gid ? *change.gid : kSame;
  const bool gives_away = uid != kSame || gid != kSame;
  if (node.ino == SourceTree::kDirectory)
    return fail(ErrorCode::InvalidArgument, EPERM, "is the directory of the source");
  const auto shown = tree_.attributes(node.ino);
  RETURN_IF_ERROR(shown);
  const bool needs_owner = gives_away || change.permissions || shown->is_private_own;
  // Checks the owner before a copy is made. The second check below covers a file that another user has put
  // there since.
  if (auto owned = check_owner(shown->status); needs_owner && !owned) return owned;
  const auto opened = changeable(node);
  RETURN_IF_ERROR(opened);
  const int descriptor = (*opened)->get();
  struct stat there {};
  if (::fstat(descriptor, &there) != 0) return fail_system(errno, "a file of the source directory", "stat");
  if (auto owned = check_owner(there); needs_owner && !owned) return owned;
  constexpr mode_t kChangeable = 0777;
  const auto failed = [] {
    return fail_system(errno, "a file of the source directory", "change attributes");
  };
  if (gives_away && ::fchown(descriptor, uid, gid) != 0) return failed();
  if (change.permissions && ::fchmod(descriptor, *change.permissions & kChangeable) != 0) return failed();
  if (change.mtime) {
    const struct timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, *change.mtime};
    if (::futimens(descriptor, times) != 0) return failed();
  }
  return {};
}

Result<void> ServedFiles::close(const Node& node) {
  Writer open;
  {
    const MutexLock lock(mutex_);
    const auto known = writers_.find(node.ino);
    if (known == writers_.end()) return {};
    open = known->second.file;
  }
  const int copy = ::fcntl(open->get(), F_DUPFD_CLOEXEC, 0);  // its close says the same
  if (copy >= 0 && ::close(copy) == 0) return {};
  return fail_system(errno, "a file of the source directory", "close");
}

Result<void> ServedFiles::sync(const Node& node) {
  if (options_.is_read_only) return {};
  const auto opened = [&]() -> Result<Writer> {
    const MutexLock lock(mutex_);
    const auto known = writers_.find(node.ino);
    return known == writers_.end() ? tree_.reader(node.ino) : known->second.file;
  }();
  RETURN_IF_ERROR(opened);
  if (::fsync((*opened)->get()) == 0) return {};
  return fail_system(errno, "a file of the source directory", "sync");
}

Result<Ino> ServedFiles::create(const Node& directory, std::string_view name, mode_t mode,
                                const Maker& maker) {
  const auto due = name_in(directory, name);
  RETURN_IF_ERROR(due);
  auto share = share_of(maker.uid);
  RETURN_IF_ERROR(share);
  auto made = changes_.create(*due, mode, maker);
  RETURN_IF_ERROR(made);
  // The descriptor is kept, because another user may give the name to another file, and the mode may forbid
  // to open the file again.
  const Ino ino = tree_.note_made(due->path, made->identity);
  const MutexLock lock(mutex_);
  writers_.insert_or_assign(
      ino, OpenWriter{std::make_shared<const UniqueFd>(std::move(made->file)), std::move(*share)});
  ++opens_[ino];
  return ino;
}

Result<Ino> ServedFiles::make_directory(const Node& directory, std::string_view name, mode_t mode,
                                        const Maker& maker) {
  const auto due = name_in(directory, name);
  RETURN_IF_ERROR(due);
  RETURN_IF_ERROR(changes_.make_directory(*due, mode, maker));
  return tree_.find(directory.ino, name);
}

Result<void> ServedFiles::remove(const Node& directory, std::string_view name) {
  const auto due = name_in(directory, name);
  RETURN_IF_ERROR(due);
  tree_.keep_open(due->path);
  auto removed = changes_.remove(*due);
  if (removed) tree_.note_removed(due->path);
  return removed;
}

Result<void> ServedFiles::remove_directory(const Node& directory, std::string_view name) {
  const auto due = name_in(directory, name);
  RETURN_IF_ERROR(due);
  auto removed = changes_.remove_directory(*due);
  if (removed) tree_.note_removed(due->path);
  return removed;
}

Result<void> ServedFiles::rename(const Node& directory, std::string_view name, const Node& new_directory,
                                 std::string_view new_name, unsigned flags) {
  const auto from = name_in(directory, name);
  RETURN_IF_ERROR(from);
  const auto to = name_in(new_directory, new_name);
  RETURN_IF_ERROR(to);
  tree_.keep_open(to->path);
  auto renamed = changes_.rename(*from, *to, flags);
  if (renamed) tree_.note_renamed(from->path, to->path);
  return renamed;
}

}  // namespace stfs
