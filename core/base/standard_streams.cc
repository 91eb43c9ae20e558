// The kernel gives the lowest free number to a new descriptor.
#include "core/base/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace stfs {

bool hold_standard_streams() {
  for (;;) {
    // Is there in each root, and allows no read and no write.
    const int held = ::open("/", O_PATH);
    if (held < 0) return false;
    if (held > STDERR_FILENO) return ::close(held) == 0;
  }
}

}  // namespace stfs
