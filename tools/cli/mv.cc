// stfs mv: renames tensors, in place.
#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "tools/cli/change.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/name_pattern.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

constexpr const char* kMvExamples =
    "Each * in FROM stands for some text, also with dots and slashes, and as little as possible. The texts\n"
    "take the place of the * in TO, in their order. All renames happen at once, or none: names may be\n"
    "exchanged. The headers change, and the index of a sharded model. No bytes of tensors move, unless a\n"
    "header has no room for the names: then its first tensors move behind the others.\n"
    "\n"
    "Examples:\n"
    "  stfs mv model.safetensors lm_head.weight output.weight\n"
    "  stfs mv model.safetensors 'model.*' 'language_model.*'\n"
    "  stfs mv --dry-run model.safetensors '*.layers.*.mlp.*' '*.h.*.ffn.*'";

Result<int> rename_tensors(const std::string& named, const std::string& from, const std::string& to,
                           const EditOptions& options, Streams& streams) {
  const auto change = open_for_edit(named, options, streams);
  if (!change) return kFailed;
  const Model& model = change->model();
  std::vector<ModelEdit::Renaming> renamings;
  for (std::uint32_t at = 0; at < model.tensors().size(); ++at) {
    const std::string_view name = model.tensors()[at].name;
    if (auto other = renamed(name, from, to)) renamings.push_back({std::string(name), std::move(*other)});
  }
  if (renamings.empty()) return report_unmatched(named, {&from, 1}, model, streams);
  const auto edit = change->what().edit();
  RETURN_IF_ERROR(edit);
  auto done = (*edit)->rename(renamings);
  if (done) done = change->carry_out();
  RETURN_IF_ERROR(done);
  ChangeReport report{.what = "renamed " + counted(renamings.size(), "tensor")};
  Json& list = report.members["renamed"] = Json::array();
  for (const auto& [old_name, new_name] : renamings) {
    list.push_back({{"from", old_name}, {"to", new_name}});
    report.names.push_back(fmt::format("{} -> {}", printable_name(old_name), printable_name(new_name)));
  }
  return change->report(report);
}

}  // namespace

int mv(const Arguments& arguments, Streams& streams) {
  std::string named;
  std::vector<std::string> patterns;
  EditOptions options;
  CommandLine line("mv", "Rename tensors, without rewriting the archive.", kMvExamples);
  line.usage("TARGET FROM TO");
  line.positional(named, "TARGET", "Archive, sharded model, or root of a mount.");
  line.positionals(patterns, "FROM TO", "Names, or patterns with equally many *.");
  add_edit_options(line, options);
  add_keep_space(line, options.keeps_space);
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (patterns.size() != 2) return report_wrong_usage(streams, "FROM and TO are required");
  const std::string& from = patterns[0];
  const std::string& to = patterns[1];
  if (std::ranges::count(from, '*') != std::ranges::count(to, '*')) {
    return report_wrong_usage(streams, "FROM and TO must have equally many *");
  }

  return attempt_beside_others(options.change, streams,
                               [&] { return rename_tensors(named, from, to, options, streams); });
}

}  // namespace stfs::tools
