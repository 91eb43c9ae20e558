// Reads the command line. CLI11 reads the arguments. This file reads the comma-separated -o options, in the
// same way as mount(8).
#include "fs/mount/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string_view>

#include "core/base/printable.h"
#include "core/base/version.h"
#include "fs/mount/mount_options.h"

namespace stfs {
namespace {

constexpr std::string_view kUsage =
    R"(Mounts a .safetensors archive, or a model of many: each tensor is a file.

Usage: safetensorsfs [OPTIONS] SOURCE MOUNTPOINT

Arguments:
  SOURCE               A .safetensors file, the .safetensors.index.json of a sharded model, or a directory.
                       A directory with one index is that model. In a directory without an index, each
                       archive becomes a directory of the mount. Also a model on the Hugging Face Hub,
                       hf://ORG/MODEL, in S3, s3://BUCKET/KEY or s3://BUCKET/PREFIX/, or the address of
                       an archive or an index on a web server, https://HOST/PATH. An address is only read.
  MOUNTPOINT           An empty directory.

Options:
  -o OPTION[,OPTION..] Mount options, see below. May be repeated.
  -f                   Stay in the foreground, with the log on standard error.
  -d                   The same, and print every request of the kernel.
  -h, --help           Print this help.
  -V, --version        Print the version.

Options for -o, separated by commas:
)";

constexpr std::string_view kExamples = R"(
Examples:
  safetensorsfs model.safetensors /mnt/model
  safetensorsfs model.safetensors.index.json /mnt/model
  safetensorsfs -o ro ~/models /mnt/models
  ls -l /mnt/model
  getfattr -d /mnt/model/lm_head.weight
  dd if=new.bin of=/mnt/model/lm_head.weight bs=1M conv=notrunc
  fusermount3 -u /mnt/model

Exit codes: 0 mounted, 1 failed, 2 wrong usage.
The log goes to standard error with -f, else to syslog. More in safetensorsfs(8).
)";

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
                      "Try 'safetensorsfs --help'.\n",
                      printable(why)),
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
  line.options.model.closes_gaps = true;
  std::string source;
  std::string mount_point;
  std::vector<std::string> lists;
  bool shows_version = false;
  bool shows_definitions = false;
  app.add_option("SOURCE", source);
  app.add_option("MOUNTPOINT", mount_point);
  app.add_option("-o", lists)->allow_extra_args(false);
  app.add_flag("-f", line.options.stays_in_foreground);
  app.add_flag("-d", line.options.shows_requests);
  app.add_flag("-V,--version", shows_version);
  app.add_flag("--definitions", shows_definitions);  // for packaging/generate; --help does not show it
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return {CommandLine::Outcome::Print, fmt::format("{}{}{}", kUsage, mount_options_help(), kExamples), {}};
  } catch (const CLI::ExtrasError&) {
    const std::string extra = app.remaining().front();
    return wrong_usage(extra.starts_with('-')
                           ? extra + ": no such option"
                           : extra + ": one argument too many after SOURCE and MOUNTPOINT");
  } catch (const CLI::ArgumentMismatch&) {
    return wrong_usage("-o: the mount options after it are missing");
  } catch (const CLI::ParseError& error) {
    return wrong_usage(error.what());
  }
  if (shows_version) return {CommandLine::Outcome::Print, version_line("safetensorsfs"), {}};
  if (shows_definitions) return {CommandLine::Outcome::Print, mount_option_definitions(), {}};
  if (source.empty())
    return wrong_usage("SOURCE is missing: the .safetensors file, index or directory to mount");
  if (mount_point.empty()) return wrong_usage("MOUNTPOINT is missing: the directory to mount it on");
  for (const std::string& list : lists) {
    for (const std::string_view option : split_at_commas(list)) {
      if (const auto wrong = apply_mount_option(option, line.options)) return wrong_usage(*wrong);
    }
  }
  if (line.options.model.fails_on_change && !line.options.model.is_read_only)
    return wrong_usage("-o on_change=fail: needs a read-only mount: -o ro,on_change=fail");
  if (line.options.model.fails_on_change && line.options.wants_passthrough)
    return wrong_usage("-o on_change=fail: goes without passthrough: the kernel's own reads are not checked");
  line.options.source = source;
  line.options.mount_point = mount_point;
  if (line.options.shows_requests) line.options.stays_in_foreground = true;
  return line;
}

std::vector<std::string> session_arguments(const Options& options, const std::filesystem::path& source,
                                           bool is_read_only, bool is_privileged) {
  const std::string name = options.source_name.empty() ? source.string() : options.source_name;
  std::string list = "subtype=" + options.subtype + ",fsname=" + escaped(name) + ",nosuid,nodev";
  if (is_read_only) list += ",ro";
  if (options.allows_other) list += ",allow_other";
  if (options.checks_permissions) list += ",default_permissions";
  if (options.unmounts_with_daemon && !is_privileged) list += ",auto_unmount";
  for (const std::string& option : options.kernel_options) list += "," + option;
  std::vector<std::string> arguments = {"safetensorsfs", "-o", list};
  if (options.shows_requests) arguments.emplace_back("-d");
  return arguments;
}

}  // namespace stfs
