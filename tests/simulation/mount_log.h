// What a simulated mount and its libfuse say, in place of stderr and syslog.
#pragma once

#include <iosfwd>

namespace stfs::test {

/// From now on; null: nobody is told.
void show_log(std::ostream* to);

}  // namespace stfs::test
