// Another user's mount that never answers. A process that asks it waits for ever, and the test hangs.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>

#include <filesystem>
#include <string>
#include <utility>

#include "core/base/unique_fd.h"

namespace stfs::test {

/// A file system of FUSE on a file or a directory. Its program never answers.
class SilentMount {
 public:
  SilentMount(std::filesystem::path path, uid_t user)
      : path_(std::move(path)), device_(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
    const std::string options =
        fmt::format("fd={},rootmode={},user_id={},group_id={},allow_other", device_.get(),
                    std::filesystem::is_directory(path_) ? "40000" : "100000", user, user);
    is_made_ = device_ && ::mount("none", path_.c_str(), "fuse.silent", 0, options.c_str()) == 0;
  }
  SilentMount(const SilentMount&) = delete;
  SilentMount& operator=(const SilentMount&) = delete;
  ~SilentMount() {
    if (is_made_) ::umount2(path_.c_str(), MNT_DETACH);
  }

  [[nodiscard]] bool is_made() const { return is_made_; }

 private:
  const std::filesystem::path path_;
  const UniqueFd device_;
  bool is_made_ = false;
};

}  // namespace stfs::test
