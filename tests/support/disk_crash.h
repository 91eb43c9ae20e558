// The states in which a crash may leave a disk.
#pragma once

#include "tests/support/choices.h"
#include "tests/support/disk_image.h"

namespace stfs::test {

/// After a loss of power: every unsettled block, size and name in a version that `choices` picks, whole
/// blocks only. For going through all of them.
DiskImage after_power_loss(const DiskImage& image, Choices& choices);

/// The same, by a policy that is drawn first (all old, all new, one odd one out, each as it comes, torn at
/// sectors, stale bytes of other files where new blocks never arrived), so that the rare states are not
/// drowned.
/// @param has_stale_blocks  DiskOptions: without them, such blocks are zeros.
DiskImage after_random_power_loss(const DiskImage& image, Choices& choices, bool has_stale_blocks = true);

/// After all processes were killed: what was written stays, unsettled as it is; files without a name go.
DiskImage after_kill(const DiskImage& image);

}  // namespace stfs::test
