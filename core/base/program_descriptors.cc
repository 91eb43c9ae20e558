#include "core/base/program_descriptors.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace stfs {

bool hold_standard_streams() {
  // The kernel gives the lowest free number to a new descriptor.
  for (;;) {
    // O_PATH works on the root directory of every process, and allows neither reads nor writes.
    const int held = ::open("/", O_PATH);
    if (held < 0) return false;
    if (held > STDERR_FILENO) return ::close(held) == 0;
  }
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &limit));
}

}  // namespace stfs
