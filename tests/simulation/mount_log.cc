// Replaces fs/base/log.cc at the link.
#include "tests/simulation/mount_log.h"

#include <fuse_lowlevel.h>

#include <ostream>

#include "fs/base/log.h"

namespace stfs {
namespace {

std::ostream* shown = nullptr;

}  // namespace

void test::show_log(std::ostream* to) {
  shown = to;
  // After the end of the connection, libfuse prints a message for each reply.
  fuse_set_log_func([](fuse_log_level, const char*, va_list) {});
}

void log::to_syslog() {}

void log::to_file(std::unique_ptr<LogFile>) {}

RecentLines::Text log::recent_lines() {
  return {};
}

std::string log::last_problem() {
  return {};
}

void log::write(Level, std::string_view line) {
  if (shown != nullptr) *shown << "      | " << line << '\n';
}

}  // namespace stfs
