// Makes a new file in these steps: temporary file, bytes, sync, rename, sync of the directory.
//
// Only the rename changes what the path names. Everything that it makes visible is on stable storage before.
#include "core/storage/new_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <utility>

#include "core/base/absolute_path.h"
#include "core/base/unique_fd.h"
#include "core/storage/attribute_names.h"
#include "core/storage/file_attributes.h"
#include "core/storage/mount_record.h"
#include "core/storage/mount_table.h"
#include "core/storage/open_directory.h"
#include "core/storage/permissions.h"

namespace stfs {
namespace {

// Small pieces are collected before they are written: a million tensors do not need a million system calls.
constexpr std::size_t kGatheredBytes = 256 * 1024;
constexpr std::string_view kTemporaryPrefix = ".stfs-";
constexpr std::string_view kTemporarySuffix = ".tmp";
constexpr std::string_view kCreateTemporary = "create a temporary file beside it";

/// Returns a pointer that does not own the storage.
std::shared_ptr<Storage> shared(Storage& storage) {
  return {std::shared_ptr<void>(), &storage};
}

// Checks whether a new file may get the path. True if the new file replaces a regular file, and takes its
// mode, owner and attributes.
Result<bool> check_target(Storage& storage, const std::filesystem::path& path, bool replace,
                          const NewFileMode& mode) {
  // If the path is a link, the link itself is replaced. Its target is ignored.
  const auto named = storage.status_of_name(path);
  if (replace && named && S_ISLNK(named->mode)) return false;
  const auto there = storage.status(path);
  if (!there) {
    const int why = there.error().errno_value;
    if (why == ENOENT || why == ELOOP) return false;  // or a dangling link
    if (why == EXDEV) return tl::unexpected(there.error());
    return fail_system(why, path.native(), "create");
  }
  if (!replace) return fail_system(EEXIST, path.native(), "create");
  if (S_ISDIR(there->mode)) return fail_system(EISDIR, path.native(), "replace");
  if (!S_ISREG(there->mode)) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: replace: not a regular file", path.native()));
  }
  if (!storage.is_system()) return true;
  return !may_be_planted(storage, path) && may_own(there->uid, mode);
}

/// Opens the directory of a new file: its path may lead to another directory later. Returns the storage that
/// reaches the directory's files.
Result<std::shared_ptr<Storage>> storage_of_directory(Storage& storage, const std::filesystem::path& path) {
  if (!storage.is_system() || ::access("/proc/self/fd", F_OK) != 0) return shared(storage);
  const std::filesystem::path directory = directory_of(path);
  auto opened = open_directory(storage, directory, LastLink::Followed);
  if (opened) return storage_in(directory, std::move(*opened));
  const int why = opened.error().errno_value;
  return fail_system(why, path.native(), why == ENOENT ? kCreateTemporary : "create");
}

// Returns true if an open directory may be in a mount of this program. A mount that /proc does not list may
// be one if a program serves it. On every other file system, users may set any attribute of `user.`.
bool may_have_tensors(int directory) {
  if (const auto mount = mount_of(directory)) return mount->type == kMountType;
  struct statfs filesystem {};
  return ::fstatfs(directory, &filesystem) == 0 && filesystem.f_type == FUSE_SUPER_MAGIC;
}

// Returns true if an open directory is in a mount of this program: the directory, or one above it on the same
// file system, has the attribute. Reaches the directories above by descriptors, because their paths may lead
// to other directories now.
bool is_in_mount(int directory) {
  if (!may_have_tensors(directory)) return false;
  struct stat first {};
  if (::fstat(directory, &first) != 0) return false;
  UniqueFd at(::openat(directory, ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  for (struct stat below = first; at;) {
    const std::string path = fmt::format("/proc/self/fd/{}", at.get());
    if (::getxattr(path.c_str(), kArchiveAttribute, nullptr, 0) >= 0) return true;
    at = UniqueFd(::openat(at.get(), "..", O_PATH | O_DIRECTORY | O_CLOEXEC));
    struct stat above {};
    if (!at || ::fstat(at.get(), &above) != 0 || above.st_dev != first.st_dev) return false;
    if (above.st_ino == below.st_ino) return false;  // "/" is above itself
    below = above;
  }
  return false;
}

// Returns true if the mode allows more to the group than to others.
bool is_for_group(mode_t mode) {
  constexpr unsigned kGroupShift = 3;
  return (mode >> kGroupShift & ~mode & 07U) != 0;
}

// Creates a file. A default list of the directory gives single users the rights of the mode's group. If the
// group has more rights than others, the file gets no list, and only the rights that every entry of that list
// gives.
Result<std::unique_ptr<File>> create_without_list(Storage& storage, const std::filesystem::path& path,
                                                  mode_t mode) {
  auto file = storage.create(path, mode);
  if (!file || !is_for_group(mode) || !has_access_list((*file)->descriptor())) return file;
  auto allowed = permissions_of(**file);
  RETURN_IF_ERROR(allowed);
  // A user of the list may have opened this file. The list gives no rights to the next file.
  RETURN_IF_ERROR(storage.remove(path));
  file = storage.create(path, 0600);
  RETURN_IF_ERROR(file);
  drop_access_list((*file)->descriptor());
  auto given = (*file)->set_mode(allowed->mode);
  if (!given) static_cast<void>(storage.remove(path));
  return given ? std::move(file) : pass_on(std::move(given));
}

// The directory may give the file another group than the one that the mode is for.
Result<std::unique_ptr<File>> create_for_group(Storage& storage, const std::filesystem::path& path,
                                               const NewFileMode& mode) {
  auto file = create_without_list(storage, path, mode.mode);
  const auto made = file ? (*file)->status() : tl::unexpected(file.error());
  if (!file || (made && mode.in_group(made->gid) == mode.mode)) return file;
  // A member of that group may have opened this file, and can't open the next one.
  RETURN_IF_ERROR(storage.remove(path));
  RETURN_IF_ERROR(made);
  return create_without_list(storage, path, mode.in_group(made->gid));
}

// Creates a temporary file beside the path. Its name is short, because the path's own name may already have
// the greatest length. The name does not end in .safetensors, so that no program takes the file for an
// archive.
Result<std::unique_ptr<File>> create_temporary(Storage& storage, const std::filesystem::path& path,
                                               const NewFileMode& mode, std::filesystem::path& temporary) {
  // In a mount, the new file would become a tensor.
  const auto directory = open_directory(storage, directory_of(path), LastLink::Followed);
  if (directory && directory->fd && is_in_mount(directory->fd.get())) {
    return fail(ErrorCode::System, EPERM,
                path.native() + ": a mount of tensors holds no new files: name a place outside of the mount");
  }
  constexpr int kAttempts =
      1000;  // another user may take the name when create_for_group() makes a second file
  int why = EEXIST;
  for (int attempt = 0; attempt < kAttempts && why == EEXIST; ++attempt) {
    temporary = directory_of(path) / new_temporary_file_name();
    auto file = create_for_group(storage, temporary, mode);
    if (file) return file;
    why = file.error().errno_value;
  }
  return fail_system(why, path.native(), kCreateTemporary);
}

}  // namespace

bool is_temporary_file_name(std::string_view file_name) {
  return file_name.starts_with(kTemporaryPrefix) && file_name.ends_with(kTemporarySuffix);
}

std::string new_temporary_file_name() {
  std::random_device source;
  return fmt::format("{}{:08x}{:08x}{}", kTemporaryPrefix, source(), source(), kTemporarySuffix);
}

Result<NewFile> NewFile::create(const std::filesystem::path& path, bool replace, const NewFileMode& mode,
                                Storage& storage) {
  RETURN_IF_ERROR(check_local(path));
  const auto beside = storage_of_directory(storage, path);
  RETURN_IF_ERROR(beside);
  NewFile file(*beside, path);
  file.replace_ = replace;
  file.mode_ = mode;
  const Result<bool> replaces = check_target(**beside, path, replace, mode);
  RETURN_IF_ERROR(replaces);
  // No other user may open the file before it has the mode of the file that it replaces.
  std::filesystem::path temporary;
  auto created = create_temporary(**beside, path, *replaces ? NewFileMode{0600} : mode, temporary);
  RETURN_IF_ERROR(created);
  RETURN_IF_ERROR(file.hold(std::move(*created), std::move(temporary)));
  return file;
}

Result<NewFile> NewFile::create_as(const std::filesystem::path& temporary, const std::filesystem::path& path,
                                   mode_t mode, Storage& storage, const NewFileMode& most) {
  const Result<bool> replaces = check_target(storage, path, true, most);
  RETURN_IF_ERROR(replaces);
  static_cast<void>(storage.remove(temporary));  // create() reports a name that could not be removed
  NewFile file(shared(storage), path);
  file.replace_ = true;
  file.mode_ = most;
  auto created =
      create_for_group(storage, temporary, {*replaces ? 0600 : mode & most.mode, most.group, most.owner});
  RETURN_IF_ERROR(created);
  RETURN_IF_ERROR(file.hold(std::move(*created), temporary));
  return file;
}

Result<void> NewFile::hold(std::unique_ptr<File> file, std::filesystem::path temporary) {
  const auto made = file->status();
  if (!made) {
    static_cast<void>(storage_->remove(temporary));
    return tl::unexpected(made.error());
  }
  file_ = std::move(file);
  temporary_ = {new std::filesystem::path(std::move(temporary)), Remove{storage_.get(), made->identity}};
  gathered_.reserve(kGatheredBytes);
  return {};
}

NewFile::~NewFile() = default;

void NewFile::Remove::operator()(std::filesystem::path* path) const {
  const auto there = storage->status_of_name(*path);
  if (!there || there->identity.same_file(made)) static_cast<void>(storage->remove(*path));
  delete path;
}

void NewFile::discard() {
  temporary_.reset();
  file_.reset();
}

Result<void> NewFile::told(Result<void> done, std::string_view action) const {
  if (done) return done;
  return fail_system(done.error().errno_value, path_.native(), action);
}

Result<void> NewFile::reserve(std::uint64_t size_bytes) {
  if (!file_) return fail_system(EBADF, path_.native(), "reserve");
  auto ok = told(file_->reserve_size(size_bytes), fmt::format("reserve {} bytes", size_bytes));
  if (!ok) discard();
  reserved_bytes_ = std::max(reserved_bytes_, size_bytes);
  return ok;
}

Result<void> NewFile::append(std::span<const std::byte> bytes) {
  if (!file_) return fail_system(EBADF, path_.native(), "append to a file that is closed");
  auto ok = gather(bytes);
  if (!ok) discard();
  appended_bytes_ += bytes.size();
  return ok;
}

Result<void> NewFile::overwrite(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (!file_) return fail_system(EBADF, path_.native(), "write to a file that is closed");
  if (offset > appended_bytes_ || bytes.size() > appended_bytes_ - offset) {
    return fail_system(EINVAL, path_.native(), "replace bytes behind the end");
  }
  auto ok = write_gathered();
  if (ok) ok = told(file_->write(bytes, offset), "write");
  if (!ok) discard();
  return ok;
}

Result<void> NewFile::cut(std::uint64_t size_bytes) {
  if (!file_) return fail_system(EBADF, path_.native(), "cut a file that is closed");
  if (size_bytes > appended_bytes_) return fail_system(EINVAL, path_.native(), "cut behind the end");
  auto ok = write_gathered();
  if (ok) ok = told(file_->resize(size_bytes), "cut");
  if (!ok) discard();
  written_bytes_ = appended_bytes_ = size_bytes;
  return ok;
}

Result<void> NewFile::gather(std::span<const std::byte> bytes) {
  if (gathered_.size() + bytes.size() > kGatheredBytes) {
    RETURN_IF_ERROR(write_gathered());
    if (bytes.size() >= kGatheredBytes) return write(bytes);
  }
  gathered_.insert(gathered_.end(), bytes.begin(), bytes.end());
  return {};
}

Result<void> NewFile::write_gathered() {
  auto ok = write(gathered_);
  gathered_.clear();
  return ok;
}

Result<void> NewFile::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  auto ok = told(file_->write(bytes, written_bytes_), "write");
  written_bytes_ += bytes.size();
  return ok;
}

Result<void> NewFile::settle(const std::function<Result<void>(File&)>& give_access) {
  if (!file_) return fail_system(EBADF, path_.native(), "settle a file that is closed");
  auto ok = complete(Durability::Power, give_access);
  if (!ok) discard();
  return ok;
}

Result<void> NewFile::complete(Durability durability, const std::function<Result<void>(File&)>& give_access) {
  RETURN_IF_ERROR(write_gathered());
  gathered_ = {};  // a caller may keep thousands of settled files
  if (reserved_bytes_ > appended_bytes_) {
    RETURN_IF_ERROR(told(file_->resize(appended_bytes_), "give back reserved space"));
  }
  bool takes_attributes = false;
  if (replace_) {  // for a new file, the renaming checks atomically
    const Result<bool> replaces = check_target(*storage_, path_, replace_, mode_);
    RETURN_IF_ERROR(replaces);
    takes_attributes = *replaces;
  }
  if (takes_attributes) {
    RETURN_IF_ERROR(take_attributes());
  } else if (give_access) {
    RETURN_IF_ERROR(give_access(*file_));
  }
  if (durability == Durability::Power) {
    RETURN_IF_ERROR(told(file_->sync_all(), "sync"));
  }
  file_.reset();
  return {};
}

Result<void> NewFile::take_attributes() {
  // In a test's model of a disk no other user can write the directories.
  if (!storage_->is_system()) return storage_->copy_attributes(path_, *file_);
  const auto copied = copy_file_attributes(storage_->reached(path_), file_->descriptor(), mode_);
  RETURN_IF_ERROR(told(copied, "copy the attributes of the file that it replaces"));
  // The new bytes are data. Another user may have chosen them to replace a program.
  const auto made = file_->status();
  RETURN_IF_ERROR(made);
  constexpr std::uint32_t kExecute = 0111;
  return (made->mode & kExecute) == 0 ? Result<void>() : file_->set_mode(made->mode & 0777U & ~kExecute);
}

Result<void> NewFile::finish(Durability durability) {
  if (!temporary_) return fail_system(EBADF, path_.native(), "finish a file that is closed");
  auto ok = file_ ? complete(durability) : Result<void>{};
  if (ok) ok = rename(path_);
  if (ok && durability == Durability::Power) ok = storage_->sync_directory(directory_of(path_));
  if (!ok) discard();
  return ok;
}

Result<void> NewFile::finish_unsynced(const std::filesystem::path& path) {
  if (!temporary_ || file_) return fail_system(EBADF, path_.native(), "finish a file that is not settled");
  replace_ = true;
  auto ok = rename(path);
  if (!ok) discard();
  return ok;
}

Result<void> NewFile::rename(const std::filesystem::path& path) {
  RETURN_IF_ERROR(check_own());
  RETURN_IF_ERROR(storage_->rename(*temporary_, path, replace_));
  // The file has its final name now: there is no temporary file to remove.
  const std::unique_ptr<std::filesystem::path> renamed(temporary_.release());
  return {};
}

Result<void> NewFile::check_own() const {
  const std::filesystem::path& name = *temporary_;
  const auto there = storage_->status_of_name(name);
  if (there && there->identity.same_file(temporary_.get_deleter().made)) return {};
  if (!there && there.error().errno_value != ENOENT) return tl::unexpected(there.error());
  return fail(
      ErrorCode::System, ESTALE,
      fmt::format("{}: another user or program has removed the new file {}, or has put another one in "
                  "its place: nothing has got the name",
                  path_.native(), name.filename().native()));
}

}  // namespace stfs
