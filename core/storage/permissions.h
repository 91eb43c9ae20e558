// Who may read and write a file, as its mode, its owner and its access control list say; and what holds for
// several files together.
#pragma once

#include <sys/types.h>

#include "core/base/error.h"
#include "core/storage/file.h"

namespace stfs {

struct Permissions {
  mode_t mode = 0;  // the nine bits
  uid_t uid = 0;
  gid_t gid = 0;

  friend bool operator==(const Permissions&, const Permissions&) = default;
};

/// Of an open file, now. Where an access control list grants or denies a right to single users or groups,
/// mode bits cannot say so: then the bits of group and others allow only what every entry of the list allows.
Result<Permissions> permissions_of(const File& file);

/// Nobody but root may do with this what one of the two files forbids. Its owner is the first file's.
Permissions strictest(const Permissions& one, const Permissions& other);
/// Whoever may do something with one of the two files may do it with this. Its owner is the first file's.
Permissions loosest(const Permissions& one, const Permissions& other);

}  // namespace stfs
