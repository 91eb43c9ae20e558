// Prints the messages of a simulated mount and its libfuse, in place of stderr and syslog.
#pragma once

#include <iosfwd>

namespace stfs::test {

/// Sets the stream for later messages; null: they are dropped.
void show_log(std::ostream* to);

}  // namespace stfs::test
