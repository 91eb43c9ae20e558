#include "fs/base/maker.h"

#include <algorithm>

namespace stfs {

bool Maker::has(mode_t right, const Permissions& given) const {
  constexpr unsigned kToGroup = 3;
  constexpr unsigned kToOwner = 6;
  if (uid == 0) return true;
  if (uid == given.uid) return (given.mode & right << kToOwner) != 0;
  const bool is_of_group =
      gid == given.gid || std::ranges::find(other_groups, given.gid) != other_groups.end();
  return (given.mode & (is_of_group ? right << kToGroup : right)) != 0;
}

}  // namespace stfs
