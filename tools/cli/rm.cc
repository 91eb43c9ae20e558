// stfs rm: deletes tensors, in place.
#include <fmt/format.h>

#include <ostream>

#include "tools/cli/change.h"
#include "tools/cli/diagnostic.h"
#include "tools/compare/name_globs.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

constexpr const char* kRmExamples =
    "A GLOB is matched against whole names; * matches dots and slashes too. All of them go, or none. Then\n"
    "tensors from the end move into the gap, if that moves at most twice what was deleted, or 1 GiB. "
    "Otherwise, "
    "and\n"
    "while the archive is mounted or open elsewhere, fillers keep the space for new tensors, and other "
    "programs\n"
    "show them: the command says so. The index of a sharded model changes with its shards.\n"
    "\n"
    "Examples:\n"
    "  stfs rm model.safetensors lm_head.weight\n"
    "  stfs rm --dry-run model.safetensors 'model.layers.0.*'\n"
    "  stfs rm model.safetensors.index.json '*.norm.weight'";

Result<int> remove_tensors(const std::string& named, const std::vector<std::string>& names,
                           const EditOptions& options, Streams& streams) {
  const auto change = open_for_edit(named, options, streams);
  if (!change) return kFailed;
  const auto edit = change->what().edit();
  RETURN_IF_ERROR(edit);
  const Model& model = change->model();
  NameGlobs globs(names);
  std::vector<std::uint32_t> removed;
  std::uint64_t size_bytes = 0;
  for (std::uint32_t at = 0; at < model.tensors().size(); ++at) {
    const Tensor tensor = model.tensors()[at];
    if (!globs.match(tensor.name)) continue;
    removed.push_back(at);
    size_bytes += tensor.data.size_bytes;
    if (auto done = (*edit)->remove(tensor.name); !done) return report_failure(streams, done.error().message);
  }
  if (const auto unused = globs.unused(); !unused.empty()) {
    report_unmatched(named, unused, model, streams);
    return report_failure(streams, named + ": nothing was changed");
  }
  RETURN_IF_ERROR(change->carry_out());
  ChangeReport report{
      .what = fmt::format("removed {}, {}", counted(removed.size(), "tensor"), human_size(size_bytes))};
  report.members["removed"] = Json::array();
  for (const std::uint32_t at : removed) {
    report.members["removed"].push_back(json_of(model.tensors()[at]));
    report.names.push_back(printable_name(model.tensors()[at].name));
  }
  return change->report(report);
}

}  // namespace

int rm(const Arguments& arguments, Streams& streams) {
  std::string named;
  std::vector<std::string> names;
  EditOptions options;
  CommandLine line("rm", "Delete tensors, without rewriting the archive.", kRmExamples);
  line.usage("TARGET GLOB...");
  line.positional(named, "TARGET", "Archive, sharded model, or root of a mount.");
  line.positionals(names, "GLOB", "Tensors to delete.");
  add_edit_options(line, options);
  add_keep_space(line, options.keeps_space);
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (names.empty()) return report_wrong_usage(streams, "name the tensors to delete");

  return attempt_beside_others(options.change, streams,
                               [&] { return remove_tensors(named, names, options, streams); });
}

}  // namespace stfs::tools
