// A program's user and groups, and the rights that a mode gives them.
#pragma once

#include <sys/types.h>

#include <vector>

#include "core/storage/permissions.h"

namespace stfs {

/// The user and the groups that made a transaction, or that send a request.
struct Maker {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> other_groups{};

  /// True if a mode and its owners give this right, as the kernel decides it.
  /// @param right  S_IROTH or S_IWOTH.
  [[nodiscard]] bool has(mode_t right, const Permissions& given) const;
};

}  // namespace stfs
