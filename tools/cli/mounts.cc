// stfs mounts: lists the mounts of safetensorsfs on this machine.
#include <fmt/format.h>

#include <array>
#include <ostream>

#include "tools/cli/command_line.h"
#include "tools/cli/verb.h"
#include "tools/target/served_mounts.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"
#include "tools/text/table.h"

namespace stfs::tools {
namespace {

constexpr const char* kMountsExamples =
    "Lists the mounts that this process's mount namespace has. A mount that gives no answer within two\n"
    "seconds is listed too. The states:\n"
    "  serving         the mount answers\n"
    "  broken          it answers, but the model at its source cannot be shown; the reason is below the "
    "table\n"
    "  dead            its daemon has ended: unmount it\n"
    "  no answer       its daemon is stopped or hangs\n"
    "  not accessible  it is another user's mount, without allow_other\n"
    "  covered         a later mount hides it\n"
    "\n"
    "Examples:\n"
    "  stfs mounts\n"
    "  stfs mounts --names                                       their mount points\n"
    "  stfs mounts --json | jq '.mounts[] | select(.state != \"serving\")'";

using Mounts = std::vector<ServedMount>;

void print_json(const Mounts& mounts, std::ostream& out) {
  JsonStream document(out);
  document.array("mounts", mounts, [](const ServedMount& mount) {
    Json row;
    row["mount_point"] = mount.entry.path.string();
    row["source"] = mount.entry.source;
    row["state"] = name_of(mount.state);
    row["problem"] = mount.problem.empty() ? Json() : Json(mount.problem);
    row["is_read_only"] = mount.is_read_only();
    row["options"] = mount.shown_options();
    row["user"] = mount.entry.user() ? Json(*mount.entry.user()) : Json();
    row["process"] = mount.daemon ? Json(*mount.daemon) : Json();
    row["tensors"] = mount.tensors ? Json(*mount.tensors) : Json();
    return row;
  });
  document.end();
}

void print_table(const Mounts& mounts, std::ostream& out) {
  using Align = Table::Align;
  using Row = std::array<std::string, 7>;
  Table table({Align::Left, Align::Left, Align::Left, Align::Right, Align::Right, Align::Right, Align::Left});
  const Row heading = {"mount point", "source", "state", "tensors", "user", "process", "options"};
  const auto cells = [](const ServedMount& mount) {
    return Row{printable_name(mount.entry.path.native()),
               printable_name(mount.entry.source),
               std::string(name_of(mount.state)),
               mount.tensors ? grouped(*mount.tensors) : "-",
               mount.entry.user() ? std::to_string(*mount.entry.user()) : "-",
               mount.daemon ? std::to_string(*mount.daemon) : "-",
               printable(mount.shown_options())};
  };
  table.print(out, mounts, cells, heading);
  for (const ServedMount& mount : mounts) {
    if (mount.problem.empty()) continue;
    out << fmt::format("{}: {}\n", printable_name(mount.entry.path.native()), printable(mount.problem));
  }
}

}  // namespace

int mounts(const Arguments& arguments, Streams& streams) {
  bool names_only = false;
  bool json = false;
  CommandLine line("mounts", "List the mounts of safetensorsfs, and their states.", kMountsExamples);
  line.flag(names_only, "--names", "Print mount points only, one per line. Do not ask the mounts.");
  line.flag(json, "--json", "Print a JSON object with an array of the mounts.").excludes("--names");
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (names_only) {
    for (const MountEntry& entry : stfs::mounts())
      if (entry.type == kMountType) streams.out << printable_name(entry.path.native()) << '\n';
    return streams.out ? kDone : kFailed;
  }
  const Mounts mounts = served_mounts();
  if (json) {
    print_json(mounts, streams.out);
  } else if (mounts.empty()) {
    streams.out << "no mount of safetensorsfs\n";
  } else {
    print_table(mounts, streams.out);
  }
  return streams.out ? kDone : kFailed;
}

}  // namespace stfs::tools
