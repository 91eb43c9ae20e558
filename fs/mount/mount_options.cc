#include "fs/mount/mount_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <utility>

#include "core/base/absolute_path.h"
#include "core/format/json_string.h"
#include "core/model/delta.h"

namespace stfs {
namespace {

constexpr unsigned kMaxThreads = 1024;

struct MountOption {
  std::string_view name;
  std::string_view value;    // "flat|tree": these words; "N": any text; empty: the option takes no value
  std::string_view meaning;  // for people: of --help and of safetensorsfs(8)
  /// Returns the allowed values if the value is wrong, and an empty text otherwise. Values of several words
  /// are checked earlier.
  std::string_view (*apply)(std::string_view value, Options& options);
};

constexpr std::string_view kRight;

/// Returns the function of an option that takes no value and sets a flag.
template <auto Set>
constexpr auto flag() {
  return [](std::string_view, Options& options) {
    Set(options);
    return kRight;
  };
}

/// True if the kernel shows this text in its lists unchanged, without escapes.
bool is_plain_name(std::string_view text) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos;
}

std::optional<std::uint32_t> number(std::string_view text, int base) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::string_view set_id(std::optional<std::uint32_t>& id, std::string_view value) {
  id = number(value, 10);
  return id ? kRight : "a numeric id";
}

constexpr std::array kMountOptions = {
    MountOption{"ro", "",
                "Refuse every change with EROFS. An archive that the user may not write is always read-only.",
                flag<[](Options& o) { o.model.is_read_only = true; }>()},
    MountOption{
        "delta", "FILE",
        "Show SOURCE with the changes of FILE, a delta. All changes go to FILE, and SOURCE stays as it is. "
        "FILE is made if it does not exist. FILE:FILE2 shows FILE2 on top of FILE, and changes FILE2 only.",
        [](std::string_view value, Options& options) -> std::string_view {
          if (!check_local(value)) return "a path, and no address: a delta must be on this machine";
          for (std::filesystem::path& delta : split_deltas(value)) {
            if (delta.empty()) return "the path of a delta";
            options.deltas.push_back(std::move(delta));
          }
          return kRight;
        }},
    MountOption{
        "layout", "flat|tree",
        "Place of the tensors. flat (the default): one directory holds all tensors under their names. "
        "tree: each dot of a name separates directories.",
        [](std::string_view value, Options& options) {
          options.model.layout = value == "tree" ? Layout::Tree : Layout::Flat;
          return kRight;
        }},
    MountOption{"edit", "on|off",
                "Whether tensors can be made, deleted, renamed and retyped, and metadata changed. on: the "
                "default. off: EPERM; the bytes of tensors can still be written.",
                [](std::string_view value, Options& options) {
                  options.model.allows_edits = value == "on";
                  return kRight;
                }},
    MountOption{"compact", "on|off",
                "Whether tensors move into the space of deleted ones when nothing was changed for 5 seconds, "
                "and when "
                "the mount ends, so that other programs find no filler. on: the default, where it moves at "
                "most twice "
                "what was deleted, or 1 GiB.",
                [](std::string_view value, Options& options) {
                  options.model.closes_gaps = value == "on";
                  return kRight;
                }},
    MountOption{
        "reshape", "",
        "A NumPy file of another shape that is written to .safetensors/npy replaces the tensor of its "
        "name. Without this option its close fails with EINVAL.",
        flag<[](Options& o) { o.model.reshapes = true; }>()},
    // Without the kernel's checks all users would have the rights of the mount's user.
    MountOption{"allow_other", "", "Other users may use the mount. Implies default_permissions.",
                flag<[](Options& o) { o.allows_other = o.checks_permissions = o.model.is_shared = true; }>()},
    MountOption{"default_permissions", "", "The kernel checks owner, group and mode of each access.",
                flag<[](Options& o) { o.checks_permissions = true; }>()},
    MountOption{"uid", "N", "Owner that the files show (default: the owner of the archive).",
                [](std::string_view value, Options& o) { return set_id(o.model.uid, value); }},
    MountOption{"gid", "N", "Group that the files show (default: the group of the archive).",
                [](std::string_view value, Options& o) { return set_id(o.model.gid, value); }},
    MountOption{"umask", "OCTAL", "Permission bits to remove from the mode of the files.",
                [](std::string_view value, Options& options) -> std::string_view {
                  const auto mask = number(value, 8);
                  if (!mask || *mask > 0777) return "an octal number from 0 to 777";
                  options.model.umask = *mask;
                  return kRight;
                }},
    MountOption{"durability", "power|process",
                "Failures that a commit survives. power (the default): also a loss of power. "
                "process: only a killed program; the commit does not wait for the disk.",
                [](std::string_view value, Options& options) {
                  options.model.commit.durability =
                      value == "power" ? Durability::Power : Durability::Process;
                  return kRight;
                }},
    MountOption{"nolock", "",
                "Take no locks on the archive. Safe only if no other program writes the archive.",
                flag<[](Options& o) { o.model.commit.uses_locks = false; }>()},
    MountOption{
        "on_change", "follow|fail",
        "What reads do after another program has written to the archive. follow (the default): they "
        "return the new bytes. fail: reads of a file that was open before fail with ESTALE, so that no "
        "file is read half old and half new; a program that opens the file again gets the new bytes. "
        "Needs ro.",
        [](std::string_view value, Options& options) {
          options.model.fails_on_change = value == "fail";
          return kRight;
        }},
    MountOption{"io", "auto|mmap|pread",
                "Way of reading the archive. mmap: map it into memory. pread: use read calls. "
                "auto (the default): mmap on local file systems, pread on network file systems and FUSE.",
                [](std::string_view value, Options& options) {
                  options.io = value == "mmap" ? Io::Mmap : value == "pread" ? Io::Pread : Io::Auto;
                  return kRight;
                }},
    MountOption{"passthrough", "",
                "In a read-only mount the kernel reads .safetensors/archive.safetensors from the archive "
                "itself. Needs root, Linux 6.9, libfuse 3.17, and data that begin at a page.",
                flag<[](Options& o) { o.wants_passthrough = true; }>()},
    MountOption{"threads", "N", "Number of requests that are served at a time (default 16).",
                [](std::string_view value, Options& options) -> std::string_view {
                  const auto threads = number(value, 10);
                  if (!threads || *threads == 0 || *threads > kMaxThreads) return "a number from 1 to 1024";
                  options.threads = *threads;
                  return kRight;
                }},
    MountOption{"strict", "",
                "Refuse a model whose index and shards disagree, and a directory with a bad archive. Without "
                "this option the whole tensors are mounted, and the others give EIO.",
                flag<[](Options& o) { o.is_strict = true; }>()},
    MountOption{"strict_modes", "",
                "Refuse chmod and chown of tensors with EPERM. Without this option they succeed and change "
                "nothing, because a tensor has the mode and the owner of its archive, and programs that copy "
                "files set both.",
                flag<[](Options& o) { o.refuses_modes = true; }>()},
    MountOption{
        "nonempty", "",
        "Mount over a directory that is not empty. Its files are hidden until the unmount, so none of them "
        "may belong to SOURCE.",
        flag<[](Options& o) { o.may_cover_files = true; }>()},
    MountOption{"auto_unmount", "", "Unmount when the program dies, also by kill -9.",
                flag<[](Options& o) { o.unmounts_with_daemon = true; }>()},
    MountOption{"log", "FILE",
                "Append the log to FILE too, each line with its time. FILE is made if it does not exist, for "
                "its owner only. After FILE was moved away (logrotate), a new one is made.",
                [](std::string_view value, Options& options) -> std::string_view {
                  if (value.empty()) return "the path of a file";
                  options.log = value;
                  return kRight;
                }},
    MountOption{"fsname", "NAME",
                "Source that mount, findmnt and df show (default: the absolute path of SOURCE).",
                [](std::string_view value, Options& options) -> std::string_view {
                  if (value.empty()) return "a name";
                  options.source_name = value;
                  return kRight;
                }},
    MountOption{"subtype", "NAME",
                "Type that mount, findmnt and df show, after \"fuse.\" (default: safetensorsfs).",
                [](std::string_view value, Options& options) -> std::string_view {
                  if (!is_plain_name(value)) return "a name of letters, digits, '.', '_' and '-'";
                  options.subtype = value;
                  return kRight;
                }},
};

// Options of mount(8) and fstab that have no effect here, or are always in effect. `nodiratime` is one of
// them because no access time is kept, and libfuse before 3.17 does not know it.
constexpr std::array<std::string_view, 20> kIgnored = {
    "rw",    "defaults",   "auto",       "noauto",   "nofail",   "_netdev",   "user",
    "users", "nouser",     "owner",      "group",    "suid",     "dev",       "nosuid",
    "nodev", "noiversion", "norelatime", "relatime", "diratime", "nodiratime"};

/// A flag of the kernel's mount. The word in take_back is the default, so it only removes an earlier flag:
/// libfuse 3.17 rejects some defaults (`atime`).
struct KernelFlag {
  std::string_view set;
  std::string_view take_back;
};
constexpr std::array kKernelFlags = {KernelFlag{"noexec", "exec"}, KernelFlag{"noatime", "atime"},
                                     KernelFlag{"sync", "async"}, KernelFlag{"dirsync", ""}};

template <class Array>
bool contains(const Array& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

bool is_one_of(std::string_view words, std::string_view word) {
  return !word.empty() && word.find('|') == std::string_view::npos &&
         fmt::format("|{}|", words).find(fmt::format("|{}|", word)) != std::string::npos;
}

/// Returns "auto, mmap or pread" for "auto|mmap|pread".
std::string alternatives(std::string_view words) {
  std::string text(words);
  text.replace(text.rfind('|'), 1, " or ");
  for (std::size_t at = text.find('|'); at != std::string::npos; at = text.find('|'))
    text.replace(at, 1, ", ");
  return text;
}

/// Applies a flag of the kernel's mount. Returns false if the flag does not exist.
bool apply_kernel_flag(std::string_view option, Options& options) {
  for (const KernelFlag& flag : kKernelFlags) {
    if (option == flag.set && !contains(options.kernel_options, option))
      options.kernel_options.emplace_back(option);
    if (option == flag.take_back) std::erase(options.kernel_options, flag.set);
    if (option == flag.set || option == flag.take_back) return true;
  }
  return false;
}

std::string label(const MountOption& option) {
  return fmt::format("{}{}{}", option.name, option.value.empty() ? "" : "=", option.value);
}

}  // namespace

std::optional<std::string> apply_mount_option(std::string_view option, Options& options) {
  const std::size_t equals = option.find('=');
  const bool has_value = equals != std::string_view::npos;
  const std::string_view name = option.substr(0, equals);
  const std::string_view value = has_value ? option.substr(equals + 1) : "";

  const auto* known = std::ranges::find(kMountOptions, name, &MountOption::name);
  if (known != kMountOptions.end() && !(has_value && known->value.empty())) {
    const bool has_words = known->value.find('|') != std::string_view::npos;
    if (has_words && !is_one_of(known->value, value))
      return fmt::format("-o {}: {} must be {}", option, name, alternatives(known->value));
    const std::string_view due = known->apply(value, options);
    if (!due.empty()) return fmt::format("-o {}: {} must be {}", option, name, due);
    return std::nullopt;
  }
  if (option.starts_with("x-") || name == "comment") return std::nullopt;
  if (!has_value && (contains(kIgnored, option) || apply_kernel_flag(option, options))) return std::nullopt;
  return fmt::format("-o {}: no such option; --help lists the options", option);
}

std::string mount_options_help() {
  constexpr std::size_t kColumn = 22;  // a space follows
  constexpr std::size_t kWidth = 106;
  std::string text;
  for (const MountOption& option : kMountOptions) {
    std::string line = fmt::format("  {:<{}}", label(option), kColumn - 2);
    if (line.size() > kColumn) {
      text += line + "\n";
      line.assign(kColumn, ' ');
    }
    std::string_view rest = option.meaning;
    while (!rest.empty()) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      if (line.size() + 1 + end > kWidth) {
        text += line + "\n";
        line.assign(kColumn, ' ');
      }
      line += fmt::format(" {}", rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    text += line + "\n";
  }
  return text +
         "  noexec, noatime, ... General options of mount(8) are accepted. nosuid and nodev are always on.\n";
}

std::string mount_option_definitions() {
  std::string text;
  for (const MountOption& option : kMountOptions) {
    std::string separator = "{";
    for (const auto& [key, value] :
         {std::pair{"name", option.name}, {"value", option.value}, {"description", option.meaning}}) {
      text += fmt::format("{}\"{}\": ", separator, key);
      append_json_string(text, value);
      separator = ", ";
    }
    text += "}\n";
  }
  return text;
}

}  // namespace stfs
