// safetensorsfs SOURCE MOUNTPOINT: the start, step by step.
#include <cstdio>
#include <string>

#include "fs/ending_signals.h"
#include "fs/filesystem.h"
#include "fs/mount_point.h"
#include "fs/options.h"
#include "fs/session.h"
#include "fs/source.h"

namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

int failed(const stfs::Error& error) {
  std::fprintf(stderr, "safetensorsfs: %s\n", error.message.c_str());
  return kFailed;
}

int print(const stfs::CommandLine& line) {
  const bool is_wrong = line.outcome == stfs::CommandLine::Outcome::WrongUsage;
  std::fputs(line.text.c_str(), is_wrong ? stderr : stdout);
  return is_wrong ? kWrongUsage : kDone;
}

int mount(stfs::Options& options) {
  auto archive = stfs::open_source(options.source, options.filesystem.is_read_only);
  if (!archive) return failed(archive.error());
  options.filesystem.is_read_only = (*archive)->access() == stfs::Access::ReadOnly;
  auto mount_point = stfs::check_mount_point(options.mount_point, options.may_cover_files);
  if (!mount_point) return failed(mount_point.error());
  options.mount_point = *mount_point;

  // A signal that comes from here on finds a mount to end, and ends it in order.
  stfs::EndingSignals::block();
  stfs::Filesystem filesystem(std::move(*archive), options.filesystem);
  auto session = stfs::Session::mount(filesystem, options);
  if (!session) return failed(session.error());
  if (!options.stays_in_foreground) {
    if (auto away = (*session)->go_to_background(); !away) return failed(away.error());
  }
  if (auto served = (*session)->serve(); !served) return failed(served.error());
  return kDone;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    stfs::CommandLine line = stfs::parse_command_line(argc, argv);
    if (line.outcome != stfs::CommandLine::Outcome::Mount) return print(line);
    return mount(line.options);
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "safetensorsfs: %s\n", exception.what());
    return kFailed;
  }
}
