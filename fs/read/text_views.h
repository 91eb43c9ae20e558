// `.safetensors/stats.json` and `.safetensors/log`: views whose text changes all the time.
//
// Each look-up makes a file of its own, with a number of its own, whose text never changes. So stat, read and
// mmap agree on its size, and each open sees a new text. One number for all opens is not enough, even if
// open(2) made the text: a read-only mount gets no OPEN (fs/kernel/fuse_ops.cc), and the page cache of one
// number would show the lines of one user to another one.
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

/// The files of one of these views. Any thread may call. ENOENT for a number that no file has.
class TextViews {
 public:
  using Text = std::vector<std::shared_ptr<const std::string>>;  // its parts

  /// @param first         the number of the first file.
  /// @param what          as UserCounts' first parameter.
  /// @param most_of_user  one user may have open.
  TextViews(Ino first, const char* what, std::size_t most_of_user)
      : counts_(what, most_of_user), next_(first) {}

  /// Makes a file with one look-up, for the user for whom the thread works. @return its number.
  /// EDQUOT if that user has too many.
  /// @param on_read  runs at each read of the file, and must not call this object; may be empty.
  Result<Ino> make(Text text, std::function<void()> on_read = {});
  [[nodiscard]] bool exists(Ino ino) const;
  void forget(Ino ino, std::uint64_t lookups);
  [[nodiscard]] Result<std::uint64_t> size_bytes(Ino ino) const;
  /// @param range  of the file.
  [[nodiscard]] Result<Bytes> read(Ino ino, ByteRange range) const;
  /// The user for whom the file was made.
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
