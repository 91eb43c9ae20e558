#include "fs/base/log_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "core/base/absolute_path.h"
#include "core/storage/foreign_mount.h"
#include "core/storage/group_members.h"
#include "core/storage/trusted_links.h"

namespace stfs {
namespace {

constexpr std::string_view kAction = "use as the log";

tl::unexpected<Error> refuse_log_file(const std::filesystem::path& path, int errno_value,
                                      std::string_view why) {
  return fail(ErrorCode::InvalidArgument, errno_value,
              fmt::format("{}: {}: {}", path.string(), kAction, why));
}

}  // namespace

Result<UniqueFd> LogFile::open_for_lines() const {
  auto opened = open_or_make();
  if (!opened && opened.error().errno_value == ELOOP)
    return refuse_log_file(path_, ELOOP, "is a symbolic link: name the file itself");
  RETURN_IF_ERROR(opened);
  UniqueFd& file = *opened;
  struct stat found {};
  if (::fstat(file.get(), &found) != 0) return fail_system(errno, path_.string(), kAction);
  if (!S_ISREG(found.st_mode)) return refuse_log_file(path_, EINVAL, "is not a regular file");
  if (found.st_nlink > 1)
    return refuse_log_file(path_, EMLINK, "has several names: another user may have linked it");
  if (found.st_uid != 0 && !is_same_user(found.st_uid, ::geteuid()))
    return refuse_log_file(path_, EPERM, fmt::format("belongs to user {}", found.st_uid));
  if (found.st_size > 0 && may_be_moved_here())
    return refuse_log_file(
        path_, EPERM,
        "has bytes already, and another user may have moved it there: remove it, or choose a "
        "directory that only you may write");
  return opened;
}

Result<UniqueFd> LogFile::open_or_make() const {
  constexpr mode_t kOwnerOnly = 0600;
  // O_NONBLOCK, because an open of a FIFO would wait for its reader.
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  // Another user may have mounted a file system on the name, whose program never answers.
  auto opened = open_entry(directory_.get(), name_, kFlags, path_.string());
  if (opened || opened.error().errno_value != ENOENT) return opened;
  UniqueFd made(::openat(directory_.get(), name_.c_str(), kFlags | O_CREAT | O_EXCL, kOwnerOnly));
  return made ? Result<UniqueFd>(std::move(made)) : fail_system(errno, path_.string(), kAction);
}

bool LogFile::may_be_moved_here() const {
  struct stat directory {};
  if (::fstat(directory_.get(), &directory) != 0) return true;
  if (directory.st_uid != 0 && !is_same_user(directory.st_uid, ::geteuid())) return true;
  // The group is trusted: distributions let a group write /var/log, and users have groups of their own.
  return (directory.st_mode & S_IWOTH) != 0 && (directory.st_mode & S_ISVTX) == 0;
}

Result<std::unique_ptr<LogFile>> LogFile::open(std::filesystem::path path) {
  auto directory = follow_to_directory(directory_of(path));
  if (!directory) return tl::unexpected(std::move(directory).error().within(path.string()));
  std::unique_ptr<LogFile> log(new LogFile(std::move(path), std::move(*directory)));
  auto file = log->open_for_lines();
  RETURN_IF_ERROR(file);
  log->file_ = std::move(*file);
  return log;
}

Result<void> LogFile::follow_name() {
  struct stat named {};
  struct stat opened {};
  const auto at_name = open_entry(directory_.get(), name_, O_PATH, path_.string());
  if (!at_name && at_name.error().errno_value == EXDEV) return tl::unexpected(at_name.error());
  if (at_name && ::fstat(at_name->get(), &named) == 0 && ::fstat(file_.get(), &opened) == 0 &&
      named.st_dev == opened.st_dev && named.st_ino == opened.st_ino)
    return {};
  auto file = open_for_lines();
  RETURN_IF_ERROR(file);
  file_ = std::move(*file);
  ends_in_line_ = false;
  return {};
}

Result<void> LogFile::append(std::string_view line) {
  // If the name can't be opened, the file that was moved away is still used.
  auto followed = follow_name();
  std::string text = ends_in_line_ ? "\n" : "";
  if (missing_lines_ > 0) text += fmt::format("{} lines are missing here\n", missing_lines_);
  text += fmt::format("{}\n", line);
  ssize_t put = 0;
  do {
    put = ::write(file_.get(), text.data(), text.size());
  } while (put < 0 && errno == EINTR);
  const int why = put < 0 ? errno : ENOSPC;
  if (put == static_cast<ssize_t>(text.size())) {
    ends_in_line_ = false;
    missing_lines_ = 0;
    return followed;
  }
  ends_in_line_ = ends_in_line_ || put > 0;
  ++missing_lines_;
  return fail_system(why, path_.string(), "write a line");
}

}  // namespace stfs
