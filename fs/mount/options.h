// The command line of safetensorsfs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/storage/byte_source.h"
#include "fs/model/filesystem.h"

namespace stfs {

struct Options {
  std::filesystem::path source;
  std::filesystem::path mount_point;
  FilesystemOptions filesystem;
  bool is_strict = false;             // -o strict
  Io io = Io::Auto;                   // -o io=
  bool wants_passthrough = false;     // -o passthrough
  bool allows_other = false;          // -o allow_other
  bool checks_permissions = false;    // -o default_permissions, or implied by allow_other
  bool may_cover_files = false;       // -o nonempty
  bool unmounts_with_daemon = false;  // -o auto_unmount
  bool stays_in_foreground = false;   // -f, -d
  bool shows_requests = false;        // -d
  unsigned threads = 0;               // -o threads=N
  /// noexec, noatime and the like: passed to the kernel as they are.
  std::vector<std::string> kernel_options;
  /// -o fsname=: what the kernel shows as the source; empty: its path.
  std::string source_name;
  /// -o subtype=: what it shows as the type, after "fuse.".
  std::string subtype = "safetensorsfs";

  /// What the kernel calls the mount's type.
  [[nodiscard]] std::string kernel_type() const { return "fuse." + subtype; }
};

/// What to do after the command line was read: mount, or print a text and leave with an exit code.
struct CommandLine {
  enum class Outcome : std::uint8_t { Mount, Print, WrongUsage };
  Outcome outcome = Outcome::Mount;
  std::string text;
  Options options;
};

CommandLine parse_command_line(int argc, const char* const* argv);

/// The arguments that libfuse's session is made from: names and flags of the kernel's mount.
std::vector<std::string> session_arguments(const Options& options, const std::filesystem::path& source,
                                           bool is_read_only);

}  // namespace stfs
