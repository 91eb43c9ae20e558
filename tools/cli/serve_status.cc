// Prints the report of a server as lines.
#include "tools/cli/serve_status.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ostream>
#include <string>
#include <vector>

#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"
#include "tools/text/table.h"

namespace stfs::tools {
namespace {

std::string text_of_seconds(const Json& seconds) {
  return human_duration(std::chrono::seconds(seconds.get<std::int64_t>()));
}

/// ", version 000042", or nothing.
std::string version_suffix(const Json& generation) {
  const Json& version = generation.at("version");
  return version.is_string() ? ", version " + version.get<std::string>() : std::string();
}

/// "16.0 GiB on cpu", "32.0 GiB on cuda:0, cuda:1", "16.0 GiB (15.8 GiB shared) on cpu".
std::string memory_text(const Json& generation) {
  std::vector<std::string> devices;
  for (const Json& arena : generation.at("arenas")) {
    auto device = arena.at("device").get<std::string>();
    if (std::ranges::find(devices, device) == devices.end()) devices.push_back(std::move(device));
  }
  const auto shared_bytes = generation.at("shared_bytes").get<std::uint64_t>();
  return fmt::format("{}{} on {}", human_size(generation.at("size_bytes").get<std::uint64_t>()),
                     shared_bytes == 0 ? "" : fmt::format(" ({} shared)", human_size(shared_bytes)),
                     fmt::join(devices, ", "));
}

void print_line(std::ostream& out, std::string_view label, std::string_view text) {
  out << fmt::format("{:<12}{}\n", label, printable(text));
}

void print_generations(const Json& report, std::ostream& out) {
  const auto newest = report.at("generation").get<std::uint64_t>();
  if (newest == 0) print_line(out, "generation", "none yet: still uploading");
  for (const Json& generation : report.at("generations")) {
    const auto number = generation.at("generation").get<std::uint64_t>();
    const auto leases = generation.at("leases").get<std::uint64_t>();
    print_line(out, number == newest ? "generation" : "older",
               fmt::format("{}{}: {}, {}, {}", number, version_suffix(generation),
                           counted(generation.at("tensors").get<std::uint64_t>(), "tensor"),
                           memory_text(generation), counted(leases, "lease")));
  }
  if (report.at("stuck").is_string()) print_line(out, "stuck", report.at("stuck").get<std::string>());
}

void print_leases(const Json& report, std::ostream& out) {
  using Align = Table::Align;
  Table table({Align::Left, Align::Right, Align::Left, Align::Right, Align::Left, Align::Right});
  const auto cells = [](const Json& lease) {
    return std::array<std::string, 6>{
        "lease",
        std::to_string(lease.at("pid").get<std::int64_t>()),
        printable_name(lease.at("program").get<std::string>()),
        fmt::format("uid {}", lease.at("uid").get<std::uint64_t>()),
        fmt::format("generation {}", lease.at("generation").get<std::uint64_t>()),
        text_of_seconds(lease.at("seconds"))};
  };
  table.print(out, report.at("leases"), cells);
}

}  // namespace

Result<void> print_server_status(std::string_view report, std::ostream& out) {
  try {
    const Json document = parse_json(report);
    print_line(out, "socket", document.at("socket").get<std::string>());
    print_line(out, "process",
               fmt::format("{}, for {}", document.at("pid").get<std::int64_t>(),
                           text_of_seconds(document.at("seconds"))));
    for (const Json& source : document.at("sources")) print_line(out, "source", source.get<std::string>());
    print_generations(document, out);
    print_leases(document, out);
  } catch (const Json::exception&) {
    return fail(ErrorCode::InvalidArgument, EPROTO, "the server's report has another format");
  }
  return {};
}

}  // namespace stfs::tools
