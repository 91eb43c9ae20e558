// Prints each row when it is made: a model may have a million tensors.
#include "tools/cli/diff_json.h"

#include <fmt/format.h>

#include <ostream>
#include <vector>

#include "tools/text/json_document.h"

namespace stfs::tools {
namespace {

Json json_of(const Model& model, std::optional<std::uint32_t> position) {
  if (!position) return {};
  const Tensor tensor = model.tensors()[*position];
  Json json;
  json["name"] = tensor.name;
  json["dtype"] = name_of(tensor.dtype);
  json["shape"] = std::vector<std::uint64_t>(tensor.shape.begin(), tensor.shape.end());
  json["size_bytes"] = tensor.data.size_bytes;
  return json;
}

/// JSON has no infinity: a number that exceeds the range of double becomes null.
Json json_of(const ElementStatistics& statistics) {
  const auto cosine = statistics.cosine();
  Json json;
  json["different"] = statistics.different;
  json["not_finite"] = statistics.not_finite;
  json["largest_difference"] = statistics.largest_difference;
  json["largest_relative_difference"] = statistics.largest_relative_difference;
  json["cosine"] = cosine ? Json(*cosine) : Json();
  json["norm_a"] = statistics.norm_a();
  json["norm_b"] = statistics.norm_b();
  json["norm_difference"] = statistics.norm_difference();
  return json;
}

/// Prints an array, one row on each line.
class JsonRows {
 public:
  JsonRows(std::ostream& out, std::string_view name) : out_(out) {
    out_ << ",\n  " << json_line(name) << ": [";
  }
  void add(const Json& row) {
    out_ << (is_empty_ ? "\n    " : ",\n    ") << json_line(row);
    is_empty_ = false;
  }
  void end() { out_ << (is_empty_ ? "]" : "\n  ]"); }

 private:
  std::ostream& out_;
  bool is_empty_ = true;
};

void print_json_differences(const DiffReport& report, std::ostream& out) {
  const auto& [a, b] = report.models;
  JsonRows rows(out, "differences");
  for (const HeaderDifference& tensor : report.difference.tensors) {
    if (!out) return;
    const auto name = tensor.a ? a.tensors()[*tensor.a].name : b.tensors()[*tensor.b].name;
    rows.add({{"name", name},
              {"kinds", tensor.kinds},
              {"a", json_of(a, tensor.a)},
              {"b", json_of(b, tensor.b)},
              {"statistics", nullptr}});
  }
  for (std::size_t at = 0; out && at < report.comparisons.size(); ++at) {
    const TensorComparison& comparison = report.comparisons[at];
    const TensorPair& pair = report.difference.pairs[at];
    if (!comparison.is_different) continue;
    rows.add({{"name", a.tensors()[pair.a].name},
              {"kinds", {"bytes"}},
              {"a", json_of(a, pair.a)},
              {"b", json_of(b, pair.b)},
              {"statistics", comparison.statistics ? json_of(*comparison.statistics) : Json()}});
  }
  rows.end();
}

void print_json_metadata(const DiffReport& report, std::ostream& out) {
  const auto value = [](std::optional<std::string_view> text) { return text ? Json(*text) : Json(); };
  JsonRows rows(out, "metadata");
  for (const MetadataDifference& entry : report.difference.metadata) {
    rows.add({{"key", entry.key}, {"a", value(entry.a)}, {"b", value(entry.b)}});
  }
  rows.end();
}

void print_json_problems(const DiffReport& report, std::ostream& out) {
  JsonRows rows(out, "problems");
  for (const Model* model : {&report.models.a, &report.models.b}) {
    for (const ModelProblem& problem : model->problems()) {
      rows.add({{"kinds", {"model"}}, {"explanation", json_path(model->path()) + ": " + problem.message}});
    }
  }
  for (const std::string& file : report.changed_files) {
    rows.add({{"kinds", {"changed"}}, {"explanation", file + " was changed during the command"}});
  }
  for (const std::string& glob : report.unused_globs) {
    rows.add({{"kinds", {"glob"}}, {"explanation", glob + ": no tensor matches"}});
  }
  for (std::size_t at = 0; at < report.comparisons.size(); ++at) {
    const TensorComparison& comparison = report.comparisons[at];
    if (!comparison.failure) continue;
    rows.add({{"name", report.models.a.tensors()[report.difference.pairs[at].a].name},
              {"kinds", {"unreadable"}},
              {"explanation", comparison.failure->message}});
  }
  rows.end();
}

}  // namespace

void print_diff_json(const DiffReport& report, std::ostream& out) {
  out << fmt::format(
      "{{\n  \"schema\": {},\n  \"path_a\": {},\n  \"path_b\": {},\n  \"equal\": {},\n  \"tensors\": {},\n"
      "  \"size_bytes\": {}",
      kJsonSchema, json_line(json_path(report.models.a.path())), json_line(json_path(report.models.b.path())),
      report.is_equal(), report.tensors(), report.size_bytes());
  print_json_differences(report, out);
  print_json_metadata(report, out);
  print_json_problems(report, out);
  out << "\n}\n";
}

}  // namespace stfs::tools
