#include "fs/write/source_changes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/capability.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

#include "core/storage/foreign_mount.h"
#include "core/storage/group_members.h"
#include "core/storage/made_directory.h"
#include "core/storage/new_file.h"
#include "core/storage/open_directory.h"
#include "core/storage/permissions.h"
#include "fs/base/capabilities.h"
#include "fs/base/user_counts.h"

namespace stfs {
namespace {

constexpr mode_t kPermissionBits = 0777;
constexpr std::size_t kCopiedBytes = 1 << 20;
constexpr const char* kRemoved = "removed";  // the target of the link that hides a file

/// ESTALE if another user has moved another directory to the name of a directory that was just made.
Result<void> check_made(int directory, const std::string& path) {
  if (is_newly_made(directory)) return {};
  return fail(ErrorCode::ArchiveChanged, ESTALE, path + ": was exchanged while it was made");
}

/// Copies the bytes, and keeps holes. A signal to the waiting program does not end the copy, because each
/// retry of the program would begin a new copy.
Result<void> copy_bytes(int from, int to, const std::string& path) {
  struct stat st {};
  if (::fstat(from, &st) != 0) return fail_system(errno, path, "stat");
  std::vector<char> buffer(kCopiedBytes);
  for (off_t at = 0; at < st.st_size;) {
    const off_t data = ::lseek(from, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) {
      // A hole reaches to the end, unless the file was truncated during the copy.
      struct stat now {};
      if (::fstat(from, &now) != 0) return fail_system(errno, path, "stat");
      st.st_size = std::min(st.st_size, now.st_size);
      break;
    }
    if (data >= 0) at = data;
    const ssize_t count = ::pread(from, buffer.data(), buffer.size(), at);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return fail_system(errno, path, "read");
    if (count == 0) {
      st.st_size = at;  // it was truncated during the copy
      break;
    }
    for (ssize_t done = 0; done < count;) {
      const ssize_t written = ::pwrite(to, buffer.data() + done, static_cast<std::size_t>(count - done), at);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return fail_system(errno, path, "copy");
      done += written;
      at += written;
    }
  }
  return ::ftruncate(to, st.st_size) == 0 ? Result<void>() : fail_system(errno, path, "copy");
}

/// Returns the identity of a regular file.
Result<EntryIdentity> file_identity(const UniqueFd& file, const std::string& path) {
  struct stat st {};
  if (::fstat(file.get(), &st) != 0) return fail_system(errno, path, "stat");
  return S_ISREG(st.st_mode) ? identity_of(file.get(), st) : EntryIdentity{};
}

/// A file without a name, if the file system has such files: then a killed process leaves no file behind.
/// Otherwise the file has a temporary name until the end.
class TemporaryFile {
 public:
  static Result<TemporaryFile> make(int directory, const std::string& path) {
    TemporaryFile made(directory, new_temporary_file_name());
    constexpr mode_t kOwnerOnly = 0600;  // until it has its owner
    made.file_ = UniqueFd(::openat(directory, ".", O_RDWR | O_TMPFILE | O_CLOEXEC, kOwnerOnly));
    if (made.file_) return made;
    constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    made.file_ = UniqueFd(::openat(directory, made.name_.c_str(), kFlags, kOwnerOnly));
    made.has_name_ = static_cast<bool>(made.file_);
    if (!made.file_) return fail_system(errno, path, "create");
    return made;
  }
  TemporaryFile(TemporaryFile&& other) noexcept
      : directory_(other.directory_),
        name_(std::move(other.name_)),
        file_(std::move(other.file_)),
        has_name_(std::exchange(other.has_name_, false)) {}
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile() {
    if (has_name_) ::unlinkat(directory_, name_.c_str(), 0);
  }

  [[nodiscard]] int descriptor() const { return file_.get(); }
  Result<UniqueFd> rename_to(const std::string& name, const std::string& path) {
    if (!has_name_) {
      const std::string open = fmt::format("/proc/self/fd/{}", file_.get());
      if (::linkat(AT_FDCWD, open.c_str(), directory_, name_.c_str(), AT_SYMLINK_FOLLOW) != 0)
        return fail_system(errno, path, "create");
      has_name_ = true;
    }
    if (::renameat(directory_, name_.c_str(), directory_, name.c_str()) != 0)
      return fail_system(errno, path, "create");
    has_name_ = false;
    return std::move(file_);
  }

 private:
  TemporaryFile(int directory, std::string name) : directory_(directory), name_(std::move(name)) {}

  int directory_;
  std::string name_;
  UniqueFd file_;
  bool has_name_ = false;
};

/// ESTALE unless the open directory is the expected directory.
Result<void> check_directory(int directory, const EntryIdentity& due, const std::string& path) {
  if (due.inode == 0) return {};
  struct stat st {};
  if (::fstat(directory, &st) != 0) return fail_system(errno, path, "stat");
  if (identity_of(directory, st) == due) return {};
  return fail(ErrorCode::ArchiveChanged, ESTALE, path + ": another directory has got its path meanwhile");
}

tl::unexpected<Error> is_behind_a_link(const std::string& path) {
  return fail(
      ErrorCode::InvalidArgument, EPERM,
      path + ": lies behind a symbolic link of the source directory, and nothing is written through links");
}

/// Gives a new file or directory to its maker, with the permissions. EACCES if this process can't.
/// @param directory  contains the file; its group applies if it has the set-group-ID bit.
Result<void> give_to(int descriptor, int directory, mode_t mode, const Maker& maker,
                     const std::string& path) {
  struct stat st {};
  struct stat above {};
  if (::fstat(descriptor, &st) != 0 || ::fstat(directory, &above) != 0)
    return fail_system(errno, path, "stat");
  const bool keeps_group = (above.st_mode & S_ISGID) != 0;
  const gid_t gid = keeps_group ? st.st_gid : maker.gid;
  if ((st.st_uid != maker.uid || st.st_gid != gid) && ::fchown(descriptor, maker.uid, gid) != 0 &&
      st.st_uid != maker.uid) {
    return fail(ErrorCode::System, EACCES,
                fmt::format("{}: this mount can make files of user {} only, not of user {}", path, st.st_uid,
                            maker.uid));
  }
  constexpr mode_t kKept = S_ISGID;  // new directories inherit it
  const RaisedCapability may_keep(CAP_FSETID);
  if (::fchmod(descriptor, (mode & kPermissionBits) | (st.st_mode & kKept)) != 0)
    return fail_system(errno, path, "set the mode of a new file");
  return {};
}

/// Checks the sticky bit of a directory as the kernel does before a user removes or replaces a file. EPERM
/// unless the user owns the file or the directory. The kernel has checked the file that had the name earlier.
/// Succeeds for root, for the mounting user, and if no file has the name.
Result<void> check_sticky_bit(int directory, const std::string& name, uid_t user,
                              std::optional<uid_t> shown_owner, const std::string& path) {
  struct stat above {};
  struct stat there {};
  if (::fstat(directory, &above) != 0) return fail_system(errno, path, "stat");
  if ((above.st_mode & S_ISVTX) == 0 || is_unlimited(user)) return {};
  const auto named = open_entry(directory, name, O_PATH, path);
  if (!named && named.error().errno_value == ENOENT) return {};
  RETURN_IF_ERROR(named);
  if (::fstat(named->get(), &there) != 0) return fail_system(errno, path, "stat");
  // With -o uid= the shown owner decides.
  const auto belongs = [&](const struct stat& file) {
    return shown_owner ? *shown_owner == user : is_same_user(file.st_uid, user);
  };
  if (belongs(there) || belongs(above)) return {};
  return fail(
      ErrorCode::System, EPERM,
      fmt::format("{}: belongs to user {}, and its directory has the sticky bit", path, there.st_uid));
}

}  // namespace

Result<UniqueFd> SourceChanges::open_private_top() {
  const SourceFiles::Layer& top = files_.top();
  auto opened = files_.open(top);
  RETURN_IF_ERROR(opened);
  if (*opened) return std::move(**opened);
  const auto delta = SourceFiles::delta_of(top);
  RETURN_IF_ERROR(delta);
  const bool is_new = ::mkdirat(top.parent.get(), top.name.c_str(), S_IRWXU) == 0;
  if (!is_new && errno != EEXIST) return fail_system(errno, top.path.string(), "create");
  if (!is_new) {  // the thread that has made it sets the owner
    opened = files_.open(top);
    RETURN_IF_ERROR(opened);
    if (*opened) return std::move(**opened);
    return fail(ErrorCode::ArchiveChanged, ESTALE, top.path.string() + ": was removed meanwhile");
  }
  auto entry = open_entry(top.parent.get(), top.name, O_RDONLY | O_DIRECTORY, top.path.string());
  RETURN_IF_ERROR(entry);
  UniqueFd made = std::move(*entry);
  RETURN_IF_ERROR(check_made(made.get(), top.path.string()));
  mark_made_directory(made.get(), top.parent.get(), top.name);
  // Only root can change the owner. A directory that keeps another owner also works.
  static_cast<void>(::fchown(made.get(), delta->st_uid, delta->st_gid) == 0);
  drop_access_list(made.get());
  struct stat its {};
  if (::fstat(made.get(), &its) != 0) return fail_system(errno, top.path.string(), "stat");
  if (::fchmod(made.get(), SourceFiles::private_mode(*delta, its.st_gid)) != 0)
    return fail_system(errno, top.path.string(), "set the mode");
  return made;
}

Result<UniqueFd> SourceChanges::enter(UniqueFd directory, const std::string& name, const std::string& path) {
  const auto open = [&] { return open_entry(directory.get(), name, O_RDONLY | O_DIRECTORY, shown(path)); };
  auto entered = open();
  if (entered) return entered;
  const int why = entered.error().errno_value;
  if (!files_.top().is_private())
    return why == ENOTDIR || why == ELOOP ? is_behind_a_link(shown(path)) : pass_on(std::move(entered));
  if (why != ENOENT) return entered;
  const auto below = files_.find(path);
  RETURN_IF_ERROR(below);
  const bool is_new = ::mkdirat(directory.get(), name.c_str(), S_IRWXU) == 0;
  if (!is_new && errno != EEXIST) return fail_system(errno, shown(path), "create");
  entered = open();
  if (!entered || !is_new) return entered;  // the thread that has made it sets the owner
  RETURN_IF_ERROR(check_made(entered->get(), shown(path)));
  RETURN_IF_ERROR(give_as(entered->get(), below->entry.status, below->entry.permissions));
  files_.mark_copy(entered->get(), files_.top());
  return entered;
}

Result<SourceChanges::Place> SourceChanges::place_of(const std::string& path) {
  Place place;
  if (files_.top().is_private()) {
    auto top = open_private_top();
    RETURN_IF_ERROR(top);
    place.directory = std::move(*top);
  } else {
    auto top = files_.open(files_.top());
    RETURN_IF_ERROR(top);
    place.directory = std::move(**top);
  }
  std::size_t at = 0;
  for (std::size_t end = path.find('/'); end != std::string::npos; end = path.find('/', at)) {
    auto entered = enter(std::move(place.directory), path.substr(at, end - at), path.substr(0, end));
    RETURN_IF_ERROR(entered);
    place.directory = std::move(*entered);
    at = end + 1;
  }
  place.name = path.substr(at);
  return place;
}

Result<SourceChanges::Place> SourceChanges::place_of(const Name& name) {
  auto place = place_of(name.path);
  RETURN_IF_ERROR(place);
  auto checked = check_directory(place->directory.get(), name.directory, shown(name.path));
  return checked ? std::move(place) : pass_on(std::move(checked));
}

Result<void> SourceChanges::check_replaceable(const Place& place, const std::string& path) const {
  // The mounting user owns the links and copies in a private directory.
  if (files_.top().is_private()) return {};
  return check_sticky_bit(place.directory.get(), place.name, requesting_user(), shown_owner_, shown(path));
}

Result<SourceChanges::Own> SourceChanges::open(const std::string& path, const EntryIdentity& due,
                                               bool keeps_bytes) {
  const auto found = files_.find(path);
  RETURN_IF_ERROR(found);
  const SourceEntry& entry = found->entry;
  if (!S_ISREG(entry.status.st_mode) || entry.identity != due)
    return fail(ErrorCode::ArchiveChanged, ESTALE, shown(path) + ": another file has got this name");
  if (!found->is_own) return copy(path, entry, keeps_bytes);
  auto place = place_of(path);
  RETURN_IF_ERROR(place);
  const auto open = [&](int access) {
    return open_entry(place->directory.get(), place->name, access | O_NONBLOCK | O_NOCTTY, shown(path));
  };
  auto opened = open(O_RDWR);
  if (!opened && opened.error().errno_value == EACCES) opened = open(O_WRONLY);
  RETURN_IF_ERROR(opened);
  Own own;
  own.file = std::move(*opened);
  auto identity = file_identity(own.file, shown(path));
  RETURN_IF_ERROR(identity);
  own.identity = *identity;
  if (own.identity != due)
    return fail(ErrorCode::ArchiveChanged, ESTALE, shown(path) + ": another file has got this name");
  return own;
}

Result<void> SourceChanges::give_as(int descriptor, const struct stat& of, const Permissions& allowed) const {
  struct stat made {};
  if (::fstat(descriptor, &made) != 0) return fail_system(errno, files_.top().path.string(), "stat");
  drop_access_list(descriptor);  // of the directory's default list
  mode_t mode = allowed.mode;
  if (::fchown(descriptor, of.st_uid, of.st_gid) != 0) {
    // The maker of the copy could read the file. Others get the rights that the file gives to all of them.
    const bool keeps_group = made.st_gid == of.st_gid || ::fchown(descriptor, ~uid_t{0}, of.st_gid) == 0;
    const mode_t for_all = allowed.mode & (allowed.mode >> 3U) & 07U;
    mode = (keeps_group ? allowed.mode & 070U : for_all << 3U) | for_all;
  }
  const mode_t for_maker = S_ISDIR(made.st_mode) ? S_IRWXU : S_IRUSR | S_IWUSR;
  if (::fchmod(descriptor, (mode & kPermissionBits) | for_maker) != 0)
    return fail_system(errno, files_.top().path.string(), "set the mode of a copy");
  return {};
}

Result<SourceChanges::Own> SourceChanges::copy(const std::string& path, const SourceEntry& of,
                                               bool keeps_bytes) {
  if (keeps_bytes && !of.file)
    return fail(ErrorCode::System, EACCES, path + ": may not be read, so not copied");
  auto place = place_of(path);
  RETURN_IF_ERROR(place);
  auto made = TemporaryFile::make(place->directory.get(), shown(path));
  RETURN_IF_ERROR(made);
  RETURN_IF_ERROR(give_as(made->descriptor(), of.status, of.permissions));
  if (keeps_bytes) {
    RETURN_IF_ERROR(copy_bytes(of.file.get(), made->descriptor(), shown(path)));
  }
  if (keeps_bytes && durability_ == Durability::Power && ::fsync(made->descriptor()) != 0)
    return fail_system(errno, shown(path), "sync");
  files_.mark_copy(made->descriptor(), files_.top());
  Own own{.file = {}, .is_copy = true};
  auto named = made->rename_to(place->name, shown(path));
  RETURN_IF_ERROR(named);
  own.file = std::move(*named);
  auto identity = file_identity(own.file, shown(path));
  RETURN_IF_ERROR(identity);
  own.identity = *identity;
  return own;
}

Result<SourceChanges::Own> SourceChanges::create(const Name& name, mode_t mode, const Maker& maker) {
  const std::string& path = name.path;
  auto place = place_of(name);
  RETURN_IF_ERROR(place);
  const int directory = place->directory.get();
  const bool is_private = files_.top().is_private();
  struct stat there {};
  const auto at = open_entry(directory, place->name, O_PATH, shown(path));
  const bool is_taken = at || at.error().errno_value == EXDEV;
  const bool is_link = at && ::fstat(at->get(), &there) == 0 && S_ISLNK(there.st_mode);
  if (is_taken && !(is_private && is_link)) return fail_system(EEXIST, shown(path), "create");
  Own own{.file = {}, .is_copy = is_private};
  const auto give = [&](int descriptor) { return give_to(descriptor, directory, mode, maker, shown(path)); };
  if (is_taken) {
    auto made = TemporaryFile::make(directory, shown(path));
    RETURN_IF_ERROR(made);
    RETURN_IF_ERROR(give(made->descriptor()));
    auto named = made->rename_to(place->name, shown(path));
    RETURN_IF_ERROR(named);
    own.file = std::move(*named);
  } else {
    constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    own.file = UniqueFd(::openat(directory, place->name.c_str(), kFlags, mode & kPermissionBits));
    if (!own.file) return fail_system(errno, shown(path), "create");
    if (auto given = give(own.file.get()); !given) {
      ::unlinkat(directory, place->name.c_str(), 0);
      return pass_on(std::move(given));
    }
  }
  auto identity = file_identity(own.file, shown(path));
  RETURN_IF_ERROR(identity);
  own.identity = *identity;
  return own;
}

Result<UniqueFd> SourceChanges::open_directory(const std::string& path, EntryIdentity due) {
  auto place = place_of(path);
  RETURN_IF_ERROR(place);
  auto entered = enter(std::move(place->directory), place->name, path);
  RETURN_IF_ERROR(entered);
  auto checked = check_directory(entered->get(), due, shown(path));
  return checked ? std::move(entered) : pass_on(std::move(checked));
}

Result<void> SourceChanges::make_directory(const Name& name, mode_t mode, const Maker& maker) {
  const std::string& path = name.path;
  auto place = place_of(name);
  RETURN_IF_ERROR(place);
  const int directory = place->directory.get();
  if (::mkdirat(directory, place->name.c_str(), mode & kPermissionBits) != 0)
    return fail_system(errno, shown(path), "create");
  const auto opened = open_entry(directory, place->name, O_RDONLY | O_DIRECTORY, shown(path));
  auto given = opened ? check_made(opened->get(), shown(path)) : tl::unexpected(opened.error());
  if (given) given = give_to(opened->get(), directory, mode, maker, shown(path));
  if (!given) ::unlinkat(directory, place->name.c_str(), AT_REMOVEDIR);
  return given;
}

Result<void> SourceChanges::hide(const Place& place) const {
  const std::string temporary = new_temporary_file_name();
  const int directory = place.directory.get();
  if (::symlinkat(kRemoved, directory, temporary.c_str()) != 0)
    return fail_system(errno, place.name, "remove");
  if (::renameat(directory, temporary.c_str(), directory, place.name.c_str()) == 0) return {};
  const int why = errno;
  ::unlinkat(directory, temporary.c_str(), 0);
  return fail_system(why, place.name, "remove");
}

void SourceChanges::remove_private_top_if_empty() const {
  const SourceFiles::Layer& top = files_.top();
  if (top.is_private()) ::unlinkat(top.parent.get(), top.name.c_str(), AT_REMOVEDIR);
}

Result<void> SourceChanges::remove(const Name& name) {
  const std::string& path = name.path;
  const auto found = files_.find(path);
  RETURN_IF_ERROR(found);
  if (S_ISDIR(found->entry.status.st_mode) && !found->entry.is_link)
    return fail_system(EISDIR, shown(path), "remove");
  auto place = place_of(name);
  RETURN_IF_ERROR(place);
  if (files_.top().is_private() && found->is_below) return hide(*place);
  RETURN_IF_ERROR(check_replaceable(*place, path));
  if (::unlinkat(place->directory.get(), place->name.c_str(), 0) != 0)
    return fail_system(errno, shown(path), "remove");
  remove_private_top_if_empty();
  return {};
}

Result<void> SourceChanges::remove_directory(const Name& name) {
  const std::string& path = name.path;
  const auto found = files_.find(path);
  RETURN_IF_ERROR(found);
  if (!S_ISDIR(found->entry.status.st_mode)) return fail_system(ENOTDIR, shown(path), "remove");
  if (files_.top().is_private() && found->is_below) {
    return fail(ErrorCode::InvalidArgument, EPERM,
                shown(path) + ": a directory of the base can't be removed from a delta");
  }
  auto place = place_of(name);
  RETURN_IF_ERROR(place);
  RETURN_IF_ERROR(check_replaceable(*place, path));
  if (::unlinkat(place->directory.get(), place->name.c_str(), AT_REMOVEDIR) != 0)
    return fail_system(errno, shown(path), "remove");
  remove_private_top_if_empty();
  return {};
}

Result<void> SourceChanges::rename(const Name& name, const Name& new_name, unsigned flags) {
  const std::string& path = name.path;
  const std::string& new_path = new_name.path;
  if ((flags & ~unsigned{RENAME_NOREPLACE}) != 0) return fail_system(EINVAL, shown(path), "exchange");
  const auto found = files_.find(path);
  RETURN_IF_ERROR(found);
  const auto there = files_.find(new_path);
  if (there && (flags & RENAME_NOREPLACE) != 0) return fail_system(EEXIST, shown(new_path), "rename");
  const bool is_private = files_.top().is_private();
  const bool is_directory = S_ISDIR(found->entry.status.st_mode);
  if (is_private && is_directory && (found->is_below || there))
    return fail_system(EXDEV, shown(path), "rename in a delta");
  if (is_private && there && S_ISDIR(there->entry.status.st_mode))
    return fail_system(EISDIR, shown(new_path), "replace");
  if (is_private && !found->is_own) {
    RETURN_IF_ERROR(copy(path, found->entry, true));
  }
  auto from = place_of(name);
  RETURN_IF_ERROR(from);
  auto to = place_of(new_name);
  RETURN_IF_ERROR(to);
  RETURN_IF_ERROR(check_replaceable(*from, path));
  RETURN_IF_ERROR(check_replaceable(*to, new_path));
  const unsigned kept_flags = is_private ? 0 : flags;
  if (::renameat2(from->directory.get(), from->name.c_str(), to->directory.get(), to->name.c_str(),
                  kept_flags) != 0)
    return fail_system(errno, shown(path), "rename");
  return is_private && found->is_below ? hide(*from) : Result<void>();
}

}  // namespace stfs
