// Reads the command line. CLI11 reads the arguments. The comma-separated -o options are read here, as
// mount(8) reads them.
#include "fs/mount/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

namespace stfs {
namespace {

constexpr unsigned kDefaultThreads = 16;
constexpr unsigned kMaxThreads = 1024;

constexpr std::string_view kHelp =
    R"(Mounts a .safetensors archive, or a model of many: each tensor is a file.

Usage: safetensorsfs [OPTIONS] SOURCE MOUNTPOINT

Arguments:
  SOURCE               a .safetensors file; the .safetensors.index.json of a sharded model; a directory that
                       holds such an index, or else archives, each of which becomes a directory
  MOUNTPOINT           an empty directory

Options:
  -o OPTION[,OPTION..] mount options, see below; may be repeated
  -f                   stay in the foreground, log to stderr
  -d                   the same, and show every request of the kernel
  -h, --help           this help
  -V, --version        the version

Options for -o, separated by commas:
  ro                   refuse every write (also where the archive can't be written)
  layout=flat|tree     flat: one directory of all tensors (default); tree: dots become directories
  allow_other          other users may enter; implies default_permissions
  default_permissions  let the kernel check owner and mode
  uid=N, gid=N         owner and group of all files (default: the archive's)
  umask=OCTAL          permission bits to take away
  durability=power|process
                       what a commit survives: power loss (default), or only a killed process,
                       without waiting for the disk
  nolock               take no locks on the archive: only where nobody else can write it
  io=auto|mmap|pread   how the archive is read: mapped, or by reads, which network and cluster file systems
                       and FUSE want; auto (default) looks where it lies
  passthrough          of a read-only mount: the kernel reads .safetensors/archive.safetensors from the
                       archive itself, where that begins its data at a page (root, kernel 6.9, libfuse 3.17)
  threads=N            requests served at a time (default 16)
  strict               refuse a model whose index and shards disagree, and a directory with a bad
                       archive; without it what is whole is mounted, and the rest gives EIO
  nonempty             mount over a directory that holds files
  auto_unmount         unmount when the daemon dies
  fsname=NAME          what mount and df show as the source (default: the path of SOURCE)
  subtype=NAME         what they show as the type, after "fuse." (default: safetensorsfs)
  noexec, noatime, ... mount(8)'s general options are accepted; nosuid and nodev are always on

Examples:
  safetensorsfs model.safetensors /mnt/model
  safetensorsfs model.safetensors.index.json /mnt/model
  safetensorsfs -o ro ~/models /mnt/models
  ls -l /mnt/model
  getfattr -d /mnt/model/lm_head.weight
  dd if=new.bin of=/mnt/model/lm_head.weight bs=1M conv=notrunc
  fusermount3 -u /mnt/model

Exit codes: 0 mounted, 1 failed, 2 wrong usage.
Log lines go to stderr with -f, to syslog otherwise. More in safetensorsfs(8).
)";

// Options of mount(8) and fstab that have no effect here, or are always in effect. `nodiratime` is one of
// them because no access time is kept; libfuse before 3.17 does not know it.
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

struct IoChoice {
  std::string_view name;
  Io io;
};
constexpr std::array kIoChoices = {IoChoice{"auto", Io::Auto}, IoChoice{"mmap", Io::Mmap},
                                   IoChoice{"pread", Io::Pread}};

template <class Array>
bool contains(const Array& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
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

/// Reads one -o option. Returns a message if the option is wrong, else nothing.
std::optional<std::string> apply(std::string_view option, Options& options) {
  const std::size_t equals = option.find('=');
  const std::string_view key = option.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? "" : option.substr(equals + 1);
  const auto wants = [&](std::string_view what) { return fmt::format("-o {}: {}", option, what); };

  if (key == "layout") {
    if (value != "flat" && value != "tree") return wants("layout is flat or tree");
    options.filesystem.layout = value == "tree" ? Layout::Tree : Layout::Flat;
  } else if (key == "uid" || key == "gid") {
    const auto id = number(value, 10);
    if (!id) return wants("a numeric id is needed");
    (key == "uid" ? options.filesystem.uid : options.filesystem.gid) = *id;
  } else if (key == "umask") {
    const auto mask = number(value, 8);
    if (!mask || *mask > 0777) return wants("an octal number from 0 to 777 is needed");
    options.filesystem.umask = *mask;
  } else if (key == "durability") {
    if (value != "power" && value != "process") return wants("durability is power or process");
    options.filesystem.commit.durability = value == "power" ? Durability::Power : Durability::Process;
  } else if (key == "io") {
    const auto choice = std::ranges::find(kIoChoices, value, &IoChoice::name);
    if (choice == kIoChoices.end()) return wants("io is auto, mmap or pread");
    options.io = choice->io;
  } else if (key == "threads") {
    const auto threads = number(value, 10);
    if (!threads || *threads == 0 || *threads > kMaxThreads)
      return wants("a number from 1 to 1024 is needed");
    options.threads = *threads;
  } else if (key == "fsname") {
    if (value.empty()) return wants("a name is needed");
    options.source_name = value;
  } else if (key == "subtype") {
    if (!is_plain_name(value)) return wants("a name of letters, digits, '.', '_' and '-' is needed");
    options.subtype = value;
  } else if (equals != std::string_view::npos && !option.starts_with("x-") && key != "comment") {
    return wants("no such option; --help lists them");
  } else if (option == "ro") {
    options.filesystem.is_read_only = true;
  } else if (option == "allow_other") {
    // Without the kernel's checks all users would have the rights of the mount's user.
    options.allows_other = options.checks_permissions = options.filesystem.is_shared = true;
  } else if (option == "default_permissions") {
    options.checks_permissions = true;
  } else if (option == "nolock") {
    options.filesystem.commit.uses_locks = false;
  } else if (option == "passthrough") {
    options.wants_passthrough = true;
  } else if (option == "strict") {
    options.is_strict = true;
  } else if (option == "nonempty") {
    options.may_cover_files = true;
  } else if (option == "auto_unmount") {
    options.unmounts_with_daemon = true;
  } else if (const auto* flag = std::ranges::find(kKernelFlags, option, &KernelFlag::set);
             flag != kKernelFlags.end()) {
    if (!contains(options.kernel_options, option)) options.kernel_options.emplace_back(option);
  } else if (flag = std::ranges::find(kKernelFlags, option, &KernelFlag::take_back);
             flag != kKernelFlags.end()) {
    std::erase(options.kernel_options, flag->set);
  } else if (!contains(kIgnored, option) && !option.starts_with("x-") && key != "comment") {
    return wants("no such option; --help lists them");
  }
  return std::nullopt;
}

std::vector<std::string_view> split_at_commas(std::string_view list) {
  std::vector<std::string_view> parts;
  while (!list.empty()) {
    const std::size_t comma = list.find(',');
    if (comma != 0) parts.push_back(list.substr(0, comma));
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
  }
  return parts;
}

CommandLine wrong_usage(std::string_view why) {
  return {CommandLine::Outcome::WrongUsage,
          fmt::format("safetensorsfs: {}\n"
                      "usage: safetensorsfs SOURCE MOUNTPOINT [-o OPTIONS] [-f] [-d]\n"
                      "`safetensorsfs --help` says more.\n",
                      why),
          {}};
}

/// Escapes commas and backslashes in a value of a -o list, as libfuse expects them.
std::string escaped(std::string_view value) {
  std::string text;
  for (const char character : value) {
    if (character == ',' || character == '\\') text += '\\';
    text += character;
  }
  return text;
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CLI::App app;
  CommandLine line;
  line.options.threads = kDefaultThreads;
  std::string source;
  std::string mount_point;
  std::vector<std::string> lists;
  bool shows_version = false;
  app.add_option("SOURCE", source);
  app.add_option("MOUNTPOINT", mount_point);
  app.add_option("-o", lists)->allow_extra_args(false);
  app.add_flag("-f", line.options.stays_in_foreground);
  app.add_flag("-d", line.options.shows_requests);
  app.add_flag("-V,--version", shows_version);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return {CommandLine::Outcome::Print, std::string(kHelp), {}};
  } catch (const CLI::ExtrasError&) {
    const std::string extra = app.remaining().front();
    return wrong_usage(extra.starts_with('-')
                           ? extra + ": no such option"
                           : extra + ": one argument too many: SOURCE and MOUNTPOINT are all");
  } catch (const CLI::ArgumentMismatch&) {
    return wrong_usage("-o: the options are missing that belong after it");
  } catch (const CLI::ParseError& error) {
    return wrong_usage(error.what());
  }
  if (shows_version) return {CommandLine::Outcome::Print, "safetensorsfs " STFS_VERSION "\n", {}};
  if (source.empty())
    return wrong_usage("SOURCE is missing: the .safetensors file, index or directory to mount");
  if (mount_point.empty()) return wrong_usage("MOUNTPOINT is missing: the directory to mount it on");
  for (const std::string& list : lists) {
    for (const std::string_view option : split_at_commas(list)) {
      if (const auto wrong = apply(option, line.options)) return wrong_usage(*wrong);
    }
  }
  line.options.source = source;
  line.options.mount_point = mount_point;
  if (line.options.shows_requests) line.options.stays_in_foreground = true;
  return line;
}

std::vector<std::string> session_arguments(const Options& options, const std::filesystem::path& source,
                                           bool is_read_only) {
  const std::string name = options.source_name.empty() ? source.string() : options.source_name;
  std::string list = "subtype=" + options.subtype + ",fsname=" + escaped(name) + ",nosuid,nodev";
  if (is_read_only) list += ",ro";
  if (options.allows_other) list += ",allow_other";
  if (options.checks_permissions) list += ",default_permissions";
  if (options.unmounts_with_daemon) list += ",auto_unmount";
  for (const std::string& option : options.kernel_options) list += "," + option;
  std::vector<std::string> arguments = {"safetensorsfs", "-o", list};
  if (options.shows_requests) arguments.emplace_back("-d");
  return arguments;
}

}  // namespace stfs
