// The states in which a crash may leave a disk.
#pragma once

#include <vector>

#include "tests/support/choices.h"
#include "tests/support/disk_image.h"

namespace stfs::test {

/// After a loss of power: every unsettled block, size and name has a version that `choices` picks. Blocks are
/// whole. For enumerating all states.
DiskImage after_power_loss(const DiskImage& image, Choices& choices);

/// After a loss of power, by a policy that is drawn first (all old, all new, all but one old or new, each at
/// random, torn at sectors, stale bytes of other files where new blocks never arrived). So rare states are
/// drawn as often as others.
/// @param has_stale_blocks  DiskOptions: without them, such blocks are zeros.
DiskImage after_random_power_loss(const DiskImage& image, Choices& choices, bool has_stale_blocks = true);

/// After one of several hosts has crashed: these files lose unsynced changes, by a policy as above. The disk
/// keeps its power, so names and all other files stay as they are.
/// @param written  files that only this host has written since their last sync.
DiskImage after_host_crash(const DiskImage& image, const std::vector<InodeNumber>& written, Choices& choices,
                           bool has_stale_blocks = true);

/// After all processes were killed: written bytes stay, unsettled as before; files without a name are
/// removed.
DiskImage after_kill(const DiskImage& image);

}  // namespace stfs::test
