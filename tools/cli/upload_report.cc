// Prints the report as text and as JSON.
#include "tools/cli/upload_report.h"

#include <fmt/format.h>

#include <array>

#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"
#include "tools/text/table.h"

namespace stfs::tools {
namespace {

using upload::PlannedTensor;

double seconds_of(const upload::UploadReport& report) {
  return std::chrono::duration<double>(report.duration).count();
}

double speed_of(const upload::UploadReport& report) {
  const double seconds = seconds_of(report);
  return seconds > 0 ? static_cast<double>(report.read_bytes) / seconds : 0;
}

/// Returns the number of tensors on each device.
std::vector<std::uint64_t> counts_of(const upload::Plan& plan) {
  std::vector<std::uint64_t> counts(plan.devices.size());
  for (const PlannedTensor& tensor : plan.tensors) counts[tensor.device] += 1;
  return counts;
}

std::string human_speed(double bytes_per_second) {
  return human_size(static_cast<std::uint64_t>(bytes_per_second)) + "/s";
}

void print_tensors(const upload::Plan& plan, std::ostream& out) {
  using Align = Table::Align;
  using Row = std::array<std::string, 5>;
  Table table({Align::Left, Align::Left, Align::Left, Align::Left, Align::Right});
  const Row heading = {"name", "dtype", "shape", "device", "size"};
  const auto cells = [&](const PlannedTensor& tensor) {
    std::string dtype(name_of(tensor.dtype));
    if (tensor.dtype != tensor.source_dtype)
      dtype = fmt::format("{} from {}", dtype, name_of(tensor.source_dtype));
    return Row{printable_name(tensor.name), std::move(dtype), shape_text(tensor.shape),
               plan.devices[tensor.device].device.name(), human_size(tensor.place.size_bytes)};
  };
  table.fit(heading);
  for (const PlannedTensor& tensor : plan.tensors) table.fit(cells(tensor));
  table.print(out, heading);
  for (const PlannedTensor& tensor : plan.tensors) {
    if (!out) return;
    table.print(out, cells(tensor));
  }
}

}  // namespace

void print_upload_json(const UploadOutcome& outcome, std::ostream& out) {
  const upload::Plan& plan = outcome.plan;
  const auto counts = counts_of(plan);
  out << fmt::format("{{\n  \"schema\": {},\n  \"devices\": [", kJsonSchema);
  for (std::size_t at = 0; at < plan.devices.size(); ++at) {
    Json row;
    row["device"] = plan.devices[at].device.name();
    row["tensors"] = counts[at];
    row["arena_bytes"] = plan.devices[at].arena_bytes;
    if (outcome.memory != nullptr) {
      const auto& memory = (*outcome.memory)[at];
      row["free_bytes"] = memory ? Json(memory->free_bytes) : Json();
      row["problem"] = memory ? Json() : Json(memory.error().message);
    }
    out << (at == 0 ? "\n    " : ",\n    ") << json_line(row);
  }
  out << (plan.devices.empty() ? "],\n" : "\n  ],\n") << "  \"tensors\": [";
  for (std::size_t at = 0; out && at < plan.tensors.size(); ++at) {
    const PlannedTensor& tensor = plan.tensors[at];
    Json row;
    row["name"] = tensor.name;
    row["dtype"] = name_of(tensor.dtype);
    row["source_dtype"] = name_of(tensor.source_dtype);
    row["shape"] = tensor.shape;
    row["device"] = plan.devices[tensor.device].device.name();
    row["offset"] = tensor.place.offset;
    row["size_bytes"] = tensor.place.size_bytes;
    out << (at == 0 ? "\n    " : ",\n    ") << json_line(row);
  }
  out << (plan.tensors.empty() ? "],\n" : "\n  ],\n") << "  \"left_out\": " << json_line(plan.left_out)
      << ",\n  \"read_bytes\": " << plan.read_bytes();
  if (outcome.report != nullptr) {
    const upload::UploadReport& report = *outcome.report;
    out << ",\n  \"duration_s\": " << json_line(seconds_of(report))
        << ",\n  \"bytes_per_second\": " << json_line(speed_of(report))
        << ",\n  \"cached_bytes\": " << report.cached_bytes << ",\n  \"overflows\": " << report.overflows
        << ",\n  \"verified_bytes\": " << report.verified_bytes;
  }
  out << "\n}\n";
}

void print_upload_text(const UploadOutcome& outcome, std::ostream& out) {
  const upload::Plan& plan = outcome.plan;
  if (outcome.memory != nullptr) print_tensors(plan, out);
  const auto counts = counts_of(plan);
  for (std::size_t at = 0; at < plan.devices.size(); ++at) {
    out << fmt::format("{}: {} tensor{}, {}", plan.devices[at].device.name(), grouped(counts[at]),
                       counts[at] == 1 ? "" : "s", human_size(plan.devices[at].arena_bytes));
    if (outcome.memory != nullptr) {
      const auto& memory = (*outcome.memory)[at];
      out << (memory ? fmt::format(" of {} free", human_size(memory->free_bytes))
                     : " of a device that does not exist");
    }
    out << '\n';
  }
  if (!plan.left_out.empty()) {
    out << fmt::format("not uploaded: {} tensor{} without a rule\n", grouped(plan.left_out.size()),
                       plan.left_out.size() == 1 ? "" : "s");
  }
  if (outcome.report == nullptr) return;
  const upload::UploadReport& report = *outcome.report;
  out << fmt::format("moved {} in {:.3f} s, {}\n", human_size(report.read_bytes), seconds_of(report),
                     human_speed(speed_of(report)));
  if (report.cached_bytes < report.read_bytes) {
    out << fmt::format("{} of it came from the disk\n", human_size(report.read_bytes - report.cached_bytes));
  }
  if (report.overflows > 0) {
    out << fmt::format("{} element{} did not fit the new dtype\n", grouped(report.overflows),
                       report.overflows == 1 ? "" : "s");
  }
  if (report.verified_bytes > 0) {
    out << fmt::format("verified {} on the devices\n", human_size(report.verified_bytes));
  }
}

}  // namespace stfs::tools
