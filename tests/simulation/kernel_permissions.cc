// Decides each access from a file's attributes, as Linux does.
#include <cerrno>

#include "tests/simulation/kernel.h"
#include "tests/support/disk_user.h"

namespace stfs::test {

int Kernel::permit(Program& program, Node node, std::uint32_t wanted) {
  if (!checks_permissions_) return 0;
  const DiskUser user{.uid = program.uid, .gid = program.uid};
  bool is_fresh = false;
  for (;;) {
    if (!inodes_[node].knows_attributes) {
      if (const int error = get_attributes(program, node); error != 0) return error;
      is_fresh = true;
    }
    const fuse_attr& shown = inodes_[node].attributes;
    if (permits({.uid = shown.uid, .gid = shown.gid, .permissions = shown.mode}, user, wanted)) return 0;
    if (is_fresh) return EACCES;
    inodes_[node].knows_attributes = false;
  }
}

int Kernel::may_make(Program& program, Node directory) {
  return permit(program, directory, kMayWrite | kMaySearch);
}

int Kernel::may_remove(Program& program, Node directory, Node node) {
  if (!checks_permissions_) return 0;
  if (const int error = permit(program, directory, kMayWrite | kMaySearch); error != 0) return error;
  const fuse_attr& above = inodes_[directory].attributes;
  if ((above.mode & kSticky) == 0 || program.uid == 0 || program.uid == above.uid) return 0;
  return inodes_[node].attributes.uid == program.uid ? 0 : EPERM;
}

}  // namespace stfs::test
