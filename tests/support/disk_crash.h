// The states in which a crash may leave a disk.
#pragma once

#include <vector>

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

/// After one of several hosts has crashed: these files lose what was not synced, by a policy as above. The
/// disk has its power, so names and all other files stay as they are.
/// @param written  files that only this host has written since their last sync.
DiskImage after_host_crash(const DiskImage& image, const std::vector<InodeNumber>& written, Choices& choices,
                           bool has_stale_blocks = true);

/// After all processes were killed: what was written stays, unsettled as it is; files without a name go.
DiskImage after_kill(const DiskImage& image);

}  // namespace stfs::test
