// The file of `-o log=`. Lines are appended to it. The file may be moved away (logrotate), and its disk may
// be full.
//
// The file's directory is opened once. Another user who may write a parent directory could later put another
// directory at the path, and this process would then make the file there.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/unique_fd.h"

namespace stfs {

/// One thread at a time.
class LogFile {
 public:
  /// Opens the file, or makes a file that only this process's user may read. Refuses anything that another
  /// user could have put there to make this process write elsewhere: a link (ELOOP), a file with several
  /// names, a file of another user, and anything that is no regular file. In a directory that all users may
  /// write, or that belongs to another user, also refuses a file with bytes: such a user could move a script
  /// of this user there, whose next run would execute the lines of the log.
  /// @param path  absolute.
  static Result<std::unique_ptr<LogFile>> open(std::filesystem::path path);

  /// Appends a line with one write(2). If the name in the directory does not lead to the open file any more,
  /// first opens the file that has the name, or makes one. A directory that was moved away keeps the log.
  /// After a failure the line is missing in the file, and the next line that can be written reports the
  /// number of missing lines.
  Result<void> append(std::string_view line);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  LogFile(std::filesystem::path path, UniqueFd directory)
      : path_(std::move(path)), name_(path_.filename()), directory_(std::move(directory)) {}
  Result<UniqueFd> open_for_lines() const;
  /// EXDEV: another user's file system is mounted on the name. ELOOP: the name is a link.
  Result<UniqueFd> open_or_make() const;
  /// True if a user may rename files to the log's name who is neither root, nor this process's user, nor a
  /// member of the directory's group.
  [[nodiscard]] bool may_be_moved_here() const;
  Result<void> follow_name();

  const std::filesystem::path path_;  // for messages
  const std::string name_;
  const UniqueFd directory_;
  UniqueFd file_;
  bool ends_in_line_ = false;  // a part of a line was written
  std::uint64_t missing_lines_ = 0;
};

}  // namespace stfs
