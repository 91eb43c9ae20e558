// Sends bytes of the map to the kernel. No other code sends them.
#pragma once

#include <fuse_lowlevel.h>

#include "fs/tree/bytes.h"

namespace stfs {

/// In the whole driver only this class gets a pointer into a map (core/storage/mapped_region.h), and it never
/// reads through the pointer: the kernel copies the bytes, once, into the reader's page. If a page of the map
/// does not exist any more then, the kernel's copy fails and the reader gets EIO. No SIGBUS occurs.
///
/// One case is not detected. If the file is truncated between ByteSource::map() and the kernel's copy a few
/// microseconds later, and its new end is in the last page of the reply, then the rest of that page reads as
/// zeros, once. Pages after it would give EIO. The watcher drops the page from the caches. With io=pread this
/// cannot happen.
class KernelReply {
 public:
  static void send(fuse_req_t req, const Bytes& bytes);
};

}  // namespace stfs
