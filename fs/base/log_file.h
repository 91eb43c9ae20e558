// The file of `-o log=`: lines are appended to it, and it may be moved away (logrotate) or its disk may be
// full.
//
// The file's directory is opened once. Another user who may write a directory above may give its path to
// another directory afterwards, where this process would then make the file.
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
  /// Makes the file if there is none: only this process's user may read it. Refuses what another user could
  /// have put there to make this process write elsewhere: a link (ELOOP), a file with several names or of
  /// another user, and what is no regular file.
  /// @param path  absolute.
  static Result<std::unique_ptr<LogFile>> open(std::filesystem::path path);

  /// Appends a line with one write(2). If another file or none has the name in the directory, first opens the
  /// file that has the name, or makes one. A directory that was moved away keeps the log.
  /// If it fails, the line is missing in the file. The next line that can be written says how many are.
  Result<void> append(std::string_view line);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  LogFile(std::filesystem::path path, UniqueFd directory)
      : path_(std::move(path)), name_(path_.filename()), directory_(std::move(directory)) {}
  Result<UniqueFd> open_for_lines() const;
  Result<void> follow_name();

  const std::filesystem::path path_;  // for messages
  const std::string name_;
  const UniqueFd directory_;
  UniqueFd file_;
  bool ends_in_line_ = false;  // a line was written in part
  std::uint64_t missing_lines_ = 0;
};

}  // namespace stfs
