// Counts the differences, and formats two tables: one for headers, one for statistics.
#include "tools/cli/diff_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ostream>
#include <variant>

#include "core/base/utf8.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"
#include "tools/text/table.h"

namespace stfs::tools {
namespace {

/// A value of metadata may be a whole document. The table shows this many bytes of it.
constexpr std::size_t kComparedValueBytes = 40;

std::size_t count_unreadable(const std::vector<TensorComparison>& comparisons) {
  return static_cast<std::size_t>(
      std::ranges::count_if(comparisons, [](const TensorComparison& c) { return c.failure.has_value(); }));
}

std::size_t count_kind(const ModelDifference& difference, std::string_view kind) {
  return static_cast<std::size_t>(std::ranges::count_if(
      difference.tensors, [&](const HeaderDifference& d) { return std::ranges::count(d.kinds, kind) > 0; }));
}

// The table.

/// Two files in mounts may be tensors with different names.
std::string names_of(const ModelPair& models, const TensorPair& pair) {
  const std::string name_a = printable_name(models.a.tensors()[pair.a].name);
  const std::string name_b = printable_name(models.b.tensors()[pair.b].name);
  return name_a == name_b ? name_a : name_a + " and " + name_b;
}

std::array<std::string, 4> cells_of(const ModelPair& models, const HeaderDifference& difference) {
  const auto cell = [](const Model& model, std::optional<std::uint32_t> position) -> std::string {
    if (!position) return "-";
    const Tensor tensor = model.tensors()[*position];
    return fmt::format("{} {}", name_of(tensor.dtype), shape_text(tensor.shape));
  };
  const std::string a = cell(models.a, difference.a);
  const std::string b = cell(models.b, difference.b);
  if (!difference.b) return {"only in A", printable_name(models.a.tensors()[*difference.a].name), a, b};
  if (!difference.a) return {"only in B", printable_name(models.b.tensors()[*difference.b].name), a, b};
  std::string kinds(difference.kinds.front());
  if (difference.kinds.size() > 1) kinds += fmt::format(", {}", difference.kinds.back());
  return {kinds, names_of(models, {*difference.a, *difference.b}), a, b};
}

std::array<std::string, 4> cells_of(const MetadataDifference& difference) {
  const auto cell = [](std::optional<std::string_view> value) -> std::string {
    if (!value) return "-";
    if (value->size() <= kComparedValueBytes) return fmt::format("\"{}\"", printable(*value));
    std::string_view start = value->substr(0, kComparedValueBytes);
    start = start.substr(0, valid_utf8_prefix(start));
    return fmt::format("\"{}\"... ({})", printable(start), counted(value->size(), "byte"));
  };
  return {"metadata", printable_name(difference.key), cell(difference.a), cell(difference.b)};
}

/// One row: a tensor whose header differs, or an entry of the metadata.
using HeaderRow = std::variant<const HeaderDifference*, const MetadataDifference*>;

void print_header_differences(const DiffReport& report, std::ostream& out) {
  std::vector<HeaderRow> rows;
  for (const HeaderDifference& tensor : report.difference.tensors) rows.emplace_back(&tensor);
  for (const MetadataDifference& entry : report.difference.metadata) rows.emplace_back(&entry);
  if (rows.empty()) return;
  const auto cells = [&report](const HeaderRow& row) {
    if (const auto* tensor = std::get_if<0>(&row)) return cells_of(report.models, **tensor);
    return cells_of(*std::get<1>(row));
  };
  using Align = Table::Align;
  const std::array<std::string, 4> heading = {"difference", "name", "A", "B"};
  Table({Align::Left, Align::Left, Align::Left, Align::Left}).print(out, rows, cells, heading);
  out << '\n';
}

using StatisticsRow = std::array<std::string, 11>;

StatisticsRow cells_of(const ModelPair& models, const TensorPair& pair, const TensorComparison& comparison) {
  const Tensor tensor = models.a.tensors()[pair.a];
  StatisticsRow row;
  row.fill("-");
  row[0] = names_of(models, pair);
  row[1] = name_of(tensor.dtype);
  row[2] = grouped(element_count(tensor.shape));
  if (!comparison.statistics) return row;
  const ElementStatistics& statistics = *comparison.statistics;
  row[3] = grouped(statistics.different);
  row[4] = grouped(statistics.not_finite);
  row[5] = fmt::format("{:.6g}", statistics.largest_difference);
  row[6] = fmt::format("{:.6g}", statistics.largest_relative_difference);
  if (const auto cosine = statistics.cosine()) row[7] = fmt::format("{:.9f}", *cosine);
  row[8] = fmt::format("{:.6g}", statistics.norm_a());
  row[9] = fmt::format("{:.6g}", statistics.norm_b());
  row[10] = fmt::format("{:.6g}", statistics.norm_difference());
  return row;
}

void print_other_bytes(const DiffReport& report, std::ostream& out) {
  const std::vector<std::size_t> rows = report.other_bytes();
  if (rows.empty()) return;
  const auto cells = [&report](std::size_t at) {
    return cells_of(report.models, report.difference.pairs[at], report.comparisons[at]);
  };
  using Align = Table::Align;
  std::vector<Align> columns(StatisticsRow{}.size(), Align::Right);
  columns[0] = columns[1] = Align::Left;
  const StatisticsRow heading = {"other bytes", "dtype",  "elements", "different", "not finite", "largest",
                                 "relative",    "cosine", "norm A",   "norm B",    "norm A-B"};
  Table(columns).print(out, rows, cells, heading);
  out << '\n';
}

void print_counts(const DiffReport& report, std::ostream& out) {
  out << fmt::format("compared {}, {}: ", counted(report.tensors(), "tensor"),
                     human_size(report.size_bytes()));
  if (report.is_equal()) {
    out << "equal\n";
    return;
  }
  std::string kinds;
  const auto add = [&](std::size_t count, std::string_view what) {
    if (count > 0) kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ", grouped(count), what);
  };
  add(count_kind(report.difference, "only_in_a"), "only in A");
  add(count_kind(report.difference, "only_in_b"), "only in B");
  add(count_kind(report.difference, "renamed"), "renamed");
  add(count_kind(report.difference, "dtype"), "of another dtype");
  add(count_kind(report.difference, "shape"), "of another shape");
  add(report.other_bytes().size(), "with other bytes");
  add(count_unreadable(report.comparisons), "unreadable");
  add(report.difference.metadata.size(), "in the metadata");
  out << (kinds.empty() ? "no difference found" : kinds) << '\n';
}

}  // namespace

std::size_t DiffReport::tensors() const {
  return difference.pairs.size() + difference.tensors.size();
}

std::uint64_t DiffReport::size_bytes() const {
  std::uint64_t size_bytes = 0;
  for (const TensorPair& pair : difference.pairs) {
    size_bytes += models.a.tensors()[pair.a].data.size_bytes;
  }
  return size_bytes;
}

std::vector<std::size_t> DiffReport::other_bytes() const {
  std::vector<std::size_t> found;
  for (std::size_t at = 0; at < comparisons.size(); ++at) {
    if (comparisons[at].is_different) found.push_back(at);
  }
  return found;
}

std::size_t DiffReport::differences() const {
  return difference.tensors.size() + difference.metadata.size() + other_bytes().size();
}

bool DiffReport::is_equal() const {
  return differences() == 0 && !has_problem;
}

void print_differences(const DiffReport& report, std::ostream& out) {
  print_header_differences(report, out);
  print_other_bytes(report, out);
}

void print_diff_summary(const DiffReport& report, std::ostream& out) {
  print_counts(report, out);
  if (!report.delta) return;
  const WrittenDelta& delta = *report.delta;
  out << fmt::format("wrote {}: {}, {}", printable(delta.path.native()), counted(delta.tensors, "tensor"),
                     human_size(delta.data_bytes));
  if (delta.removed > 0) out << fmt::format("; {} removed", grouped(delta.removed));
  if (delta.renamed > 0) out << fmt::format("; {} renamed", grouped(delta.renamed));
  out << '\n';
}

}  // namespace stfs::tools
