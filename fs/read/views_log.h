// `.safetensors/log`: the last lines of the mount's log. Each look-up makes a file of its own whose text
// never changes, as with stats.json, for the user who looks it up: only this user may read the file, because
// lines about requests of others may contain names that the user may not read.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "fs/base/recent_lines.h"
#include "fs/base/user_counts.h"
#include "fs/tree/bytes.h"
#include "fs/tree/inode_table.h"

namespace stfs {

/// Any thread may call. ENOENT for a number that no file has.
class LogViews {
 public:
  static constexpr std::string_view kName = "log";

  /// @param first         the number of the first file.
  /// @param most_of_user  one user may have open.
  LogViews(Ino first, std::size_t most_of_user)
      : next_(first), counts_("states of the log that programs have open", most_of_user) {}

  /// Makes a file with one look-up, for the user for whom the thread works. @return its number.
  /// EDQUOT if that user has too many.
  Result<Ino> make();
  [[nodiscard]] bool exists(Ino ino) const;
  void forget(Ino ino, std::uint64_t lookups);
  [[nodiscard]] Result<std::uint64_t> size_bytes(Ino ino) const;
  /// @param range  of the file.
  [[nodiscard]] Result<Bytes> read(Ino ino, ByteRange range) const;
  /// The user who may read the file.
  [[nodiscard]] uid_t reader(Ino ino) const;

 private:
  struct File {
    RecentLines::Text lines;
    std::uint64_t size_bytes = 0;
    uid_t reader = 0;
    std::uint64_t lookups = 1;
    UserCounts::Share share{};
  };

  mutable std::mutex mutex_;  // guards what follows
  std::map<Ino, File> files_;
  Ino next_;
  UserCounts counts_;
};

}  // namespace stfs
