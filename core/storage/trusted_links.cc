#include "core/storage/trusted_links.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/absolute_path.h"
#include "core/storage/file.h"
#include "core/storage/foreign_mount.h"
#include "core/storage/group_members.h"
#include "core/storage/mount_record.h"
#include "core/storage/system_file.h"

namespace stfs {
namespace {

constexpr std::size_t kMostLinks = 40;  // as the kernel (MAXSYMLINKS)
constexpr int kLeadsThere = O_PATH | O_CLOEXEC;
constexpr decltype(statfs::f_flags) kNoLinks = 0x2000;  // ST_NOSYMFOLLOW of Linux 5.10: -o nosymfollow

std::atomic<bool> enters_no_foreign_mounts = false;

UniqueFd open_at(int directory, const std::string& path, int flags, std::uint64_t resolve) {
  struct open_how how {};
  how.flags = static_cast<unsigned>(flags);
  how.resolve = resolve;
  return UniqueFd(static_cast<int>(::syscall(SYS_openat2, directory, path.c_str(), &how, sizeof how)));
}

bool is_ours(std::optional<uid_t> owner) {
  return owner && (*owner == 0 || is_same_user(*owner, ::geteuid()));
}

class Walk {
 public:
  Walk(const std::string& path, OtherMounts mounts, Links followed)
      : path_(path), rest_(path), mounts_(mounts), followed_(followed) {}

  Result<FollowedFile> from(int directory) {
    if (path_.empty()) return fail_system(ENOENT, path_, "open");
    at_ = UniqueFd(::openat(directory, path_.starts_with('/') ? "/" : ".", kLeadsThere | O_DIRECTORY));
    if (!at_) return failed();
    shown_ = path_.starts_with('/') ? "/" : "";
    for (;;) {
      has_passed_ = has_passed_ || is_at_watched();
      rest_.erase(0, rest_.find_first_not_of('/'));
      if (rest_.empty() || has_passed_) break;
      RETURN_IF_ERROR(take_step());
    }
    FollowedFile found{.fd = std::move(at_)};
    if (::fstat(found.fd.get(), &found.status) != 0) return failed();
    RETURN_IF_ERROR(check(found));
    return found;
  }

  /// True if the walk reaches the directory. It then ends there.
  bool passes(const struct stat& directory) {
    watched_ = directory;
    static_cast<void>(from(AT_FDCWD));
    return has_passed_;
  }

 private:
  struct Link {
    std::string name;
    std::optional<uid_t> owner;  // nothing: unknown
  };

  [[nodiscard]] tl::unexpected<Error> failed() const {
    return fail_system(errno, path_, links_.empty() ? "open" : "follow the link");
  }

  [[nodiscard]] bool is_at_watched() const {
    struct stat here {};
    return watched_ && ::fstat(at_.get(), &here) == 0 && here.st_dev == watched_->st_dev &&
           here.st_ino == watched_->st_ino;
  }

  /// Goes to the next component of the rest.
  Result<void> take_step() {
    const std::string name = rest_.substr(0, rest_.find('/'));
    rest_.erase(0, name.size());
    UniqueFd next = open_name(name, !rest_.empty());
    if (!next) return failed();
    const bool is_named = rest_.empty() || is_chosen_by_others_;
    if (is_named || mounts_ == OtherMounts::NotForeign) {
      const auto unknown = is_named ? UnknownMount::Refused : UnknownMount::Entered;
      RETURN_IF_ERROR(check_not_foreign(next.get(), path_, unknown));
    }
    struct stat status {};
    if (::fstat(next.get(), &status) != 0) return failed();
    if (S_ISLNK(status.st_mode)) return follow(next, name, owner_of(next.get(), status.st_uid));
    at_ = std::move(next);
    if (!rest_.empty() && !S_ISDIR(status.st_mode)) return fail_system(ENOTDIR, path_, "open");
    shown_ += (shown_.empty() || shown_.ends_with('/') ? "" : "/") + name;
    return {};
  }

  [[nodiscard]] UniqueFd open_name(const std::string& name, bool is_directory) const {
    constexpr int kItself = kLeadsThere | O_NOFOLLOW;
    if (mounts_ == OtherMounts::Refused) return open_at(at_.get(), name, kItself, RESOLVE_NO_XDEV);
    // Try it as a directory first: the kernel then mounts the file system of an automounter there.
    UniqueFd opened;
    if (is_directory) opened = UniqueFd(::openat(at_.get(), name.c_str(), kItself | O_DIRECTORY));
    if (!opened && (!is_directory || errno == ENOTDIR))
      opened = UniqueFd(::openat(at_.get(), name.c_str(), kItself));
    return opened;
  }

  Result<void> follow(const UniqueFd& link, const std::string& name, std::optional<uid_t> owner) {
    if (links_.size() == kMostLinks) return fail_system(ELOOP, path_, "follow the link");
    struct statfs filesystem {};
    if (::fstatfs(link.get(), &filesystem) != 0) return failed();
    const bool is_in_proc = filesystem.f_type == PROC_SUPER_MAGIC;
    // The kernel's own links have no owner that a user namespace knows.
    if (is_in_proc && (name == "self" || name == "thread-self")) owner = 0;
    const bool is_link_chosen_by_others = is_chosen_by_others_;
    links_.push_back({shown_ + (shown_.empty() || shown_.ends_with('/') ? "" : "/") + name, owner});
    is_chosen_by_others_ = is_chosen_by_others_ || !is_ours(owner);
    if ((filesystem.f_flags & kNoLinks) != 0) return fail_system(ELOOP, path_, "follow the link");
    if (is_in_proc) {
      // The link leads to an open file, whatever its text says.
      if (is_link_chosen_by_others && followed_ == Links::Trusted) {
        return fail(ErrorCode::System, EACCES,
                    path_ + ": another user's link leads into /proc: not followed: name the file itself");
      }
      UniqueFd behind(::openat(at_.get(), name.c_str(), kLeadsThere));
      if (!behind) return failed();
      // A mount that /proc does not list may be anybody's: in another mount namespace, or unmounted lazily.
      if (is_chosen_by_others_ && (!mount_of(behind.get()) || is_in_foreign_mount(behind.get()))) {
        return fail(ErrorCode::System, EXDEV,
                    path_ +
                        ": leads into another user's file system: not entered, because its program may "
                        "never answer");
      }
      at_ = std::move(behind);
      shown_ = links_.back().name;
      return {};
    }
    std::string text(PATH_MAX, '\0');
    const ssize_t length = ::readlinkat(link.get(), "", text.data(), text.size());
    if (length <= 0) return failed();
    text.resize(static_cast<std::size_t>(length));
    link_bytes_ += text.size();
    if (link_bytes_ > PATH_MAX) return fail_system(ELOOP, path_, "follow the link");
    if (text.starts_with('/')) {
      at_ = UniqueFd(::open("/", kLeadsThere | O_DIRECTORY));
      if (!at_) return failed();
      shown_ = "/";
    }
    rest_ = text + rest_;
    return {};
  }

  [[nodiscard]] Result<void> check(const FollowedFile& found) const {
    if (followed_ == Links::All || links_.empty()) return {};
    const auto target = owner_of(found.fd.get(), found.status.st_uid);
    const auto named = [](std::optional<uid_t> owner) {
      return owner ? fmt::format("user {}", *owner) : "a user whom the mount does not tell";
    };
    for (const Link& link : links_) {
      if (is_ours(link.owner) || (link.owner && target && is_same_user(*link.owner, *target))) continue;
      return fail(ErrorCode::System, EACCES,
                  fmt::format("{}: another user's link is not followed: {} belongs to {}, and what it "
                              "leads to belongs to {}: if you mean that file, name it itself (readlink "
                              "-f), or make the link yourself",
                              path_, link.name, named(link.owner), named(target)));
    }
    return {};
  }

  const std::string path_;
  std::string rest_;  // the path after at_; begins with a slash after a component
  const OtherMounts mounts_;
  const Links followed_;
  bool is_chosen_by_others_ = false;
  UniqueFd at_;
  std::string shown_;  // a path of at_, for messages
  std::vector<Link> links_;
  std::size_t link_bytes_ = 0;  // of the texts of all links
  std::optional<struct stat> watched_;
  bool has_passed_ = false;  // the watched directory
};

Result<FollowedFile> follow(int directory, const std::string& path, OtherMounts mounts, Links followed) {
  if (directory == AT_FDCWD) {
    RETURN_IF_ERROR(check_local(path));
  }
  if (mounts == OtherMounts::Entered && enters_no_foreign_mounts) mounts = OtherMounts::NotForeign;
  // Most paths have no links.
  constexpr std::uint64_t kNone = RESOLVE_NO_SYMLINKS;
  FollowedFile plain{.fd = open_at(directory, path, kLeadsThere,
                                   mounts == OtherMounts::Entered ? kNone : kNone | RESOLVE_NO_XDEV)};
  if (!plain.fd) return Walk(path, mounts, followed).from(directory);
  if (!path.ends_with('/')) {
    RETURN_IF_ERROR(check_not_foreign(plain.fd.get(), path));
  }
  if (::fstat(plain.fd.get(), &plain.status) != 0) return fail_system(errno, path, "stat");
  return plain;
}

}  // namespace

UniqueFd FollowedFile::open(int flags) const {
  return UniqueFd(::open(fmt::format("/proc/self/fd/{}", fd.get()).c_str(), flags | O_CLOEXEC));
}

Result<FollowedFile> follow_trusted_links(int directory, const std::string& path, OtherMounts mounts) {
  return follow(directory, path, mounts, Links::Trusted);
}

Result<FollowedFile> follow_all_links(const std::string& path) {
  return follow(AT_FDCWD, path, OtherMounts::Entered, Links::All);
}

bool passes_directory(const std::string& path, const struct stat& directory) {
  const OtherMounts mounts = enters_no_foreign_mounts ? OtherMounts::NotForeign : OtherMounts::Entered;
  return Walk(path, mounts, Links::All).passes(directory);
}

Result<UniqueFd> follow_to_directory(const std::filesystem::path& path) {
  const std::string& name = path.native();
  constexpr std::string_view kOwn = "/proc/self/fd/";
  if (name.starts_with(kOwn) && name.find('/', kOwn.size()) == name.npos) {
    UniqueFd own(::open(name.c_str(), kLeadsThere | O_DIRECTORY));
    return own ? Result<UniqueFd>(std::move(own)) : Result<UniqueFd>(fail_system(errno, name, "open"));
  }
  auto found = follow_all_links(path / "");
  if (found) return std::move(found->fd);
  const int why = found.error().errno_value;
  return why == EXDEV || !check_local(path) ? Result<UniqueFd>(tl::unexpected(std::move(found).error()))
                                            : Result<UniqueFd>(fail_system(why, name, "open"));
}

Result<UniqueFd> open_what_is_named(const std::filesystem::path& path, Links links) {
  RETURN_IF_ERROR(check_local(path));
  std::filesystem::path named = path;
  const auto open_directory = [&](const std::filesystem::path& directory) -> Result<UniqueFd> {
    if (links == Links::All) return follow_to_directory(directory);
    auto found = follow_trusted_links(AT_FDCWD, directory / "", OtherMounts::NotForeign);
    RETURN_IF_ERROR(found);
    return std::move(found->fd);
  };
  for (std::size_t followed = 0; followed < kMostLinks; ++followed) {
    const bool ends_in_slash = named.filename().empty() && named.has_relative_path();
    const std::filesystem::path itself = ends_in_slash ? named.parent_path() : named;
    const std::filesystem::path name = itself.filename();
    if (name.empty() || name == "." || name == "..") return open_directory(named);
    const auto above = open_directory(itself.has_parent_path() ? itself.parent_path() : ".");
    RETURN_IF_ERROR(above);
    UniqueFd found(::openat(above->get(), name.c_str(), kLeadsThere | O_NOFOLLOW));
    if (!found) return fail_system(errno, path.native(), "open");
    std::string text(PATH_MAX, '\0');
    const ssize_t length = ::readlinkat(found.get(), "", text.data(), text.size());
    if (length <= 0) return found;  // it is no link
    text.resize(static_cast<std::size_t>(length));
    struct stat link {};
    if (::fstat(found.get(), &link) != 0 || !is_ours(owner_of(found.get(), link.st_uid))) {
      if (links == Links::Trusted) {
        return fail(ErrorCode::System, EACCES,
                    path.native() + ": another user's link is not followed: name the place itself");
      }
      auto behind = follow_all_links(named.native());
      RETURN_IF_ERROR(behind);
      return std::move(behind->fd);
    }
    named = real_path_of(above->get(), itself.parent_path()) / text;
  }
  return fail_system(ELOOP, path.native(), "follow the link");
}

void enter_no_foreign_mounts() {
  enters_no_foreign_mounts = true;
}

NoForeignMounts::NoForeignMounts() : before_(enters_no_foreign_mounts.exchange(true)) {}

NoForeignMounts::~NoForeignMounts() {
  enters_no_foreign_mounts = before_;
}

std::filesystem::path real_path_of(int descriptor, const std::filesystem::path& opened_as) {
  std::error_code unknown;
  auto real = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), unknown);
  if (unknown) {  // a container without /proc, or a storage of a test
    real = std::filesystem::canonical(opened_as, unknown);
    return unknown ? opened_as : real;
  }
  if (!real.is_absolute() || !is_in_this_namespace(descriptor)) return opened_as;
  // The kernel adds this to the path of a file without a name. A file's own name may also end so.
  if (!real.native().ends_with(" (deleted)")) return real;
  const auto there = system_status_of_name(real);
  struct stat own {};
  const bool is_named = there && ::fstat(descriptor, &own) == 0 && there->identity.inode == own.st_ino;
  return is_named ? real : opened_as;
}

std::filesystem::path real_path(const std::filesystem::path& path) {
  const auto found = follow_all_links(path);
  return found ? real_path_of(found->fd.get(), path) : path;
}

}  // namespace stfs
