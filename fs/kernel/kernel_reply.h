// The one place that hands bytes of the map to the kernel.
#pragma once

#include <fuse_lowlevel.h>

#include "fs/tree/bytes.h"

namespace stfs {

/// Of all of the driver, only this class gets a pointer into a map (core/storage/mapped_region.h), and it
/// reads nothing through it: the kernel copies, once, into the reader's page. Where a page is gone by then,
/// the kernel's copy fails and the reader gets EIO. There is no SIGBUS.
///
/// Not seen: a file that is cut between ByteSource::map() and the kernel's copy, microseconds later, at a
/// place in the last page of the reply. The rest of that page reads as zeros then, once: a page further on
/// would be EIO. The watcher drops it from the caches. With io=pread there is no such reply.
class KernelReply {
 public:
  static void send(fuse_req_t req, const Bytes& bytes);
};

}  // namespace stfs
