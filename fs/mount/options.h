// The command line of safetensorsfs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/storage/file_byte_source.h"
#include "fs/model/mounted_model_options.h"

namespace stfs {

struct Options {
  std::filesystem::path source;
  std::filesystem::path mount_point;
  MountedModelOptions model;
  bool is_strict = false;      // -o strict
  bool refuses_modes = false;  // -o strict_modes
  Io io = Io::Auto;            // -o io=
  /// -o delta=: each delta is on top of the earlier ones.
  std::vector<std::filesystem::path> deltas;
  bool wants_passthrough = false;     // -o passthrough
  bool allows_other = false;          // -o allow_other
  bool checks_permissions = false;    // -o default_permissions, or implied by allow_other
  bool may_cover_files = false;       // -o nonempty
  bool unmounts_with_daemon = false;  // -o auto_unmount
  bool stays_in_foreground = false;   // -f, -d
  bool shows_requests = false;        // -d
  unsigned threads = 0;               // -o threads=N
  /// Flags such as noexec and noatime, which are passed to the kernel unchanged.
  std::vector<std::string> kernel_options;
  std::filesystem::path log;  // -o log=; empty: no log file
  /// -o fsname=: the source that the kernel shows. Empty: the source's path.
  std::string source_name;
  /// -o subtype=: the type that the kernel shows, after "fuse.".
  std::string subtype = "safetensorsfs";

  /// The mount's type, as the kernel shows it.
  [[nodiscard]] std::string kernel_type() const { return "fuse." + subtype; }
};

/// The result of reading the command line: mount, or print a text and exit with a code.
struct CommandLine {
  enum class Outcome : std::uint8_t { Mount, Print, WrongUsage };
  Outcome outcome = Outcome::Mount;
  std::string text;
  Options options;
};

CommandLine parse_command_line(int argc, const char* const* argv);

/// The arguments for libfuse's session: names and flags of the kernel's mount.
/// @param is_privileged  true if this process mounts without fusermount3. Then only the guard unmounts with
///                       the daemon, because fusermount3 would unmount by the path.
std::vector<std::string> session_arguments(const Options& options, const std::filesystem::path& source,
                                           bool is_read_only, bool is_privileged);

}  // namespace stfs
