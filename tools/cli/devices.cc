// stfs devices: lists the devices to which an upload can go.
#include <array>
#include <ostream>

#include "tools/cli/command_line.h"
#include "tools/cli/verb.h"
#include "tools/device/device.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"
#include "tools/text/table.h"

namespace stfs::tools {
namespace {

constexpr const char* kDevicesExamples =
    "The first column is a DEVICE of `stfs upload --device`. cuda:GPU-UUID is a DEVICE too, and so is\n"
    "cuda:MIG-UUID for a part of a GPU; both name the same device after a restart of the machine.\n"
    "If no GPU can be used, the last line gives the reason: no driver, "
    "an\n"
    "old driver, no device, no access to the device, or a safetensorsfs that was built without CUDA.\n"
    "\n"
    "Examples:\n"
    "  stfs devices\n"
    "  stfs devices --json | jq -r '.devices[] | select(.free_bytes > 2e10).device'";

void print_json(const device::DeviceList& list, std::ostream& out) {
  Json document = json_document();
  document["devices"] = Json::array();
  for (const device::DeviceInfo& info : list.devices) {
    Json row;
    row["device"] = info.device.name();
    row["description"] = info.description;
    row["uuid"] = info.device.uuid.empty() ? Json() : Json(info.device.uuid);
    row["free_bytes"] = info.free_bytes ? Json(*info.free_bytes) : Json();
    row["total_bytes"] = info.total_bytes;
    row["problem"] = info.problem.empty() ? Json() : Json(info.problem);
    document["devices"].push_back(std::move(row));
  }
  document["why_no_cuda"] = list.why_no_cuda.empty() ? Json() : Json(list.why_no_cuda);
  write_json(document, out);
}

void print_table(const device::DeviceList& list, std::ostream& out) {
  using Align = Table::Align;
  using Row = std::array<std::string, 5>;
  Table table({Align::Left, Align::Right, Align::Right, Align::Left, Align::Left});
  const Row heading = {"device", "free", "memory", "UUID", "description"};
  const auto cells = [](const device::DeviceInfo& info) {
    std::string description = info.description;
    if (!info.problem.empty()) description += (description.empty() ? "" : ": ") + info.problem;
    return Row{info.device.name(), info.free_bytes ? human_size(*info.free_bytes) : "?",
               human_size(info.total_bytes), info.device.uuid.empty() ? "-" : info.device.uuid,
               printable(description)};
  };
  table.print(out, list.devices, cells, heading);
  if (!list.why_no_cuda.empty()) out << "no GPU: " << printable(list.why_no_cuda) << '\n';
}

}  // namespace

int devices(const Arguments& arguments, Streams& streams) {
  bool names_only = false;
  bool json = false;
  CommandLine line("devices", "List the devices for uploads, and their memory.", kDevicesExamples);
  line.flag(names_only, "--names", "Print the names of the devices that can be used, one per line.");
  line.flag(json, "--json", "Print a JSON object of the devices, with the reason if there is no GPU.")
      .excludes("--names");
  if (const auto code = line.parse(arguments, streams)) return *code;
  const device::DeviceList list = device::list_devices();
  if (names_only) {
    for (const device::DeviceInfo& info : list.devices)
      if (info.problem.empty()) streams.out << info.device.name() << '\n';
  } else {
    json ? print_json(list, streams.out) : print_table(list, streams.out);
  }
  return streams.out ? kDone : kFailed;
}

}  // namespace stfs::tools
