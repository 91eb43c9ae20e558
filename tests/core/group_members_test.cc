// core/storage/group_members.h: asks the user database of this host.
#include "core/storage/group_members.h"

#include <pwd.h>
#include <unistd.h>

#include "tests/support/catch.h"

using namespace stfs;

TEST_CASE("root is in its own group, and a number without a name in no group that is known",
          "[core][group_members]") {
  const passwd* root = ::getpwuid(0);
  if (root != nullptr) CHECK(membership_of(system_storage(), 0, root->pw_gid) == Membership::Member);
  if (root != nullptr) CHECK(membership_of(system_storage(), 0, 3'999'999'999) == Membership::NoMember);
  CHECK(membership_of(system_storage(), 3'999'999'999, 3'999'999'999) == Membership::Unknown);
}
