// `.safetensors/stats.json` and `.safetensors/log`: views whose text changes constantly.
//
// Each look-up makes a new file with a new number. The text of this file never changes, so stat, read and
// mmap agree on its size, and each open sees a new text. One number for all opens is not enough, even if
// open(2) made the text: a read-only mount gets no OPEN (fs/kernel/fuse_ops.cc), and the page cache of one
// number would show one user's lines to another user.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/base/mutex.h"
#include "fs/base/user_counts.h"
#include "fs/tree/bytes.h"
#include "fs/tree/inode_table.h"

namespace stfs {

/// The files of stats.json, or of the log. Any thread may call. ENOENT for a number that no file has.
class TextViews {
 public:
  using Text = std::vector<std::shared_ptr<const std::string>>;  // its parts

  /// @param first         the number of the first file.
  /// @param what          the first parameter of UserCounts.
  /// @param most_of_user  the number of files that one user may have open.
  TextViews(Ino first, const char* what, std::size_t most_of_user)
      : counts_(what, most_of_user), next_(first) {}

  /// Makes a file with one look-up, for the user whose request this thread serves. @return the file's number.
  /// EDQUOT if the user has too many files.
  /// @param on_read  runs at each read of the file, and must not call this object; may be empty.
  Result<Ino> make(Text text, std::function<void()> on_read = {});
  [[nodiscard]] bool exists(Ino ino) const;
  void forget(Ino ino, std::uint64_t lookups);
  [[nodiscard]] Result<std::uint64_t> size_bytes(Ino ino) const;
  /// @param range  a range of the file.
  [[nodiscard]] Result<Bytes> read(Ino ino, ByteRange range) const;
  /// Returns the user for whom the file was made.
  [[nodiscard]] uid_t user(Ino ino) const;

 private:
  struct File {
    Text text;
    std::function<void()> on_read;
    std::uint64_t size_bytes = 0;
    uid_t user = 0;
    std::uint64_t lookups = 1;
    UserCounts::Share share{};
  };

  UserCounts counts_;
  mutable Mutex mutex_;
  std::map<Ino, File> files_ GUARDED_BY(mutex_);
  Ino next_ GUARDED_BY(mutex_);
};

}  // namespace stfs
