// The life of a mount: from fusermount3 to the last reply.
#pragma once

#include <filesystem>
#include <memory>

#include "core/base/error.h"
#include "fs/model/forest.h"
#include "fs/mount/options.h"

namespace stfs {

class Session {
 public:
  /// @param source  what is mounted, as the kernel's table shall name it.
  /// Mounts; requests wait until serve(). No thread is started yet, so the process may still fork.
  static Result<std::unique_ptr<Session>> mount(Forest& forest, const std::filesystem::path& source,
                                                const Options& options);
  /// Unmounts what is still mounted.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Leaves the terminal; the parent process exits with 0.
  Result<void> go_to_background();
  /// Serves until the unmount or SIGINT, SIGTERM or SIGHUP, which unmount. Commits that are under way
  /// are finished, what is only staged is dropped with a line in the log.
  Result<void> serve();

 private:
  struct Parts;
  explicit Session(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace stfs
