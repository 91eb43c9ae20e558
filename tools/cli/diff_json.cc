// Prints each row when it is made: a model may have a million tensors.
#include "tools/cli/diff_json.h"

#include <numeric>
#include <ostream>
#include <vector>

#include "tools/text/json_document.h"

namespace stfs::tools {
namespace {

Json json_of(const Model& model, std::optional<std::uint32_t> position) {
  return position ? tools::json_of(model.tensors()[*position]) : Json();
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

Json json_of(const ModelPair& models, const HeaderDifference& tensor) {
  const auto name = tensor.a ? models.a.tensors()[*tensor.a].name : models.b.tensors()[*tensor.b].name;
  return {{"name", name},
          {"kinds", tensor.kinds},
          {"a", json_of(models.a, tensor.a)},
          {"b", json_of(models.b, tensor.b)},
          {"statistics", nullptr}};
}

Json json_of(const ModelPair& models, const TensorPair& pair, const TensorComparison& comparison) {
  return {{"name", models.a.tensors()[pair.a].name},
          {"kinds", {"bytes"}},
          {"a", json_of(models.a, pair.a)},
          {"b", json_of(models.b, pair.b)},
          {"statistics", comparison.statistics ? json_of(*comparison.statistics) : Json()}};
}

Json json_of(const MetadataDifference& entry) {
  const auto value = [](std::optional<std::string_view> text) { return text ? Json(*text) : Json(); };
  return {{"key", entry.key}, {"a", value(entry.a)}, {"b", value(entry.b)}};
}

std::vector<Json> problems_of(const DiffReport& report) {
  std::vector<Json> problems;
  for (const Model* model : {&report.models.a, &report.models.b}) {
    for (const ModelProblem& problem : model->problems()) {
      problems.push_back(
          {{"kinds", {"model"}}, {"explanation", json_path(model->path()) + ": " + problem.message}});
    }
  }
  for (const std::string& file : report.changed_files) {
    problems.push_back({{"kinds", {"changed"}}, {"explanation", file + " was changed during the command"}});
  }
  for (const std::string& glob : report.unused_globs) {
    problems.push_back({{"kinds", {"glob"}}, {"explanation", glob + ": no tensor matches"}});
  }
  for (std::size_t at = 0; at < report.comparisons.size(); ++at) {
    const TensorComparison& comparison = report.comparisons[at];
    if (!comparison.failure) continue;
    problems.push_back({{"name", report.models.a.tensors()[report.difference.pairs[at].a].name},
                        {"kinds", {"unreadable"}},
                        {"explanation", comparison.failure->message}});
  }
  return problems;
}

}  // namespace

void print_diff_json(const DiffReport& report, std::ostream& out) {
  JsonStream document(out);
  document.member("path_a", json_path(report.models.a.path()));
  document.member("path_b", json_path(report.models.b.path()));
  document.member("equal", report.is_equal());
  document.member("tensors", report.tensors());
  document.member("size_bytes", report.size_bytes());
  // Tensors whose headers differ are first; tensors with other bytes follow.
  const std::size_t headers = report.difference.tensors.size();
  std::vector<std::size_t> rows(headers);
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  for (const std::size_t at : report.other_bytes()) rows.push_back(headers + at);
  document.array("differences", rows, [&](std::size_t row) {
    if (row < headers) return json_of(report.models, report.difference.tensors[row]);
    const std::size_t at = row - headers;
    return json_of(report.models, report.difference.pairs[at], report.comparisons[at]);
  });
  document.array("metadata", report.difference.metadata,
                 [](const MetadataDifference& entry) { return json_of(entry); });
  if (report.delta) {
    document.member("delta", {{"path", json_path(report.delta->path)},
                              {"tensors", report.delta->tensors},
                              {"data_size_bytes", report.delta->data_bytes},
                              {"removed", report.delta->removed},
                              {"renamed", report.delta->renamed}});
  }
  document.array("problems", problems_of(report), [](const Json& problem) { return problem; });
  document.end();
}

}  // namespace stfs::tools
