// stfs ls: lists the tensors of an archive, one on each row.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <ostream>
#include <span>

#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/verb.h"
#include "tools/compare/name_globs.h"
#include "tools/target/target.h"
#include "tools/text/json_document.h"
#include "tools/text/near_names.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"
#include "tools/text/table.h"

namespace stfs::tools {
namespace {

constexpr const char* kLsExamples =
    "Prints name, dtype, shape and size of each tensor, in the order of the data. A GLOB is matched against\n"
    "whole names; * matches dots and slashes too. Characters that could disturb a terminal are escaped\n"
    "(\\n, \\x1b), and the empty name is shown as \"\". --json prints names exactly. On a terminal, the "
    "table\n"
    "has a heading and a total.\n"
    "\n"
    "Examples:\n"
    "  stfs ls model.safetensors                       all tensors\n"
    "  stfs ls model.safetensors '*.[qk]_proj.weight'  the matches of a pattern\n"
    "  stfs ls --sort size model.safetensors | head    the largest tensors\n"
    "  stfs ls /mnt/model                              through a mount\n"
    "  stfs ls --json model.safetensors | jq '.tensors[].name'";

struct LsRequest {
  std::string target;
  std::vector<std::string> globs;
  std::string sort = "offset";
  bool reverse = false;
  bool names_only = false;
  bool exact_bytes = false;
  bool json = false;
};

using Positions = std::vector<std::uint32_t>;

/// Returns the tensors that any glob matches, or all tensors without a glob. Reports the globs that match
/// none.
Positions select(const Target& target, const LsRequest& request, Streams& streams, int& code) {
  const TensorIndex& tensors = target.model->tensors();
  Positions candidates(tensors.size());
  std::iota(candidates.begin(), candidates.end(), 0U);
  if (target.tensor) candidates = {*target.tensor};
  NameGlobs globs(request.globs);
  Positions selected;
  std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(selected),
               [&](std::uint32_t position) { return globs.match(tensors[position].name); });
  for (const std::string& glob : globs.unused()) {
    NearNames near(glob);
    for (const std::uint32_t position : candidates) near.offer(tensors[position].name);
    code = report_failure(streams, fmt::format("{}: {}: no tensor matches{}", request.target,
                                               printable_name(glob), near.question()));
  }
  return selected;
}

void sort(Positions& positions, const TensorIndex& tensors, const LsRequest& request) {
  if (request.sort == "name") {
    std::sort(positions.begin(), positions.end(),
              [&](std::uint32_t a, std::uint32_t b) { return tensors[a].name < tensors[b].name; });
  } else if (request.sort == "size") {
    std::stable_sort(positions.begin(), positions.end(), [&](std::uint32_t a, std::uint32_t b) {
      return tensors[a].data.size_bytes > tensors[b].data.size_bytes;
    });
  }
  if (request.reverse) std::reverse(positions.begin(), positions.end());
}

void print_json(const Model& model, const Positions& positions, std::ostream& out) {
  JsonStream document(out);
  document.member("path", json_path(model.path()));
  document.array("tensors", positions, [&](std::uint32_t position) {
    Json row = json_of(model.tensors()[position]);
    row["offset"] = model.file_range(position).offset;
    if (model.is_sharded()) row["shard"] = json_path(model.shards()[model.place(position).shard].path);
    return row;
  });
  document.end();
}

void print_names(const TensorIndex& tensors, const Positions& positions, std::ostream& out) {
  for (const std::uint32_t position : positions) {
    if (!out) return;
    out << printable_name(tensors[position].name) << '\n';
  }
}

void print_table(const Model& model, const Positions& positions, const LsRequest& request,
                 const Streams& streams) {
  using Align = Table::Align;
  using Row = std::array<std::string, 4>;
  Table table({Align::Left, Align::Left, Align::Left, Align::Right});
  std::uint64_t total_bytes = 0;
  for (const std::uint32_t position : positions) total_bytes += model.tensors()[position].data.size_bytes;
  const auto cells = [&](std::uint32_t position) {
    const Tensor tensor = model.tensors()[position];
    const std::uint64_t size_bytes = tensor.data.size_bytes;
    std::string size = request.exact_bytes ? std::to_string(size_bytes) : human_size(size_bytes);
    return Row{printable_name(tensor.name), std::string(name_of(tensor.dtype)), shape_text(tensor.shape),
               std::move(size)};
  };
  // Scripts take each line for a tensor.
  const bool is_for_people = streams.out_is_terminal && !positions.empty();
  const Row heading = {"name", "dtype", "shape", "size"};
  table.print(streams.out, positions, cells,
              is_for_people ? std::span(heading) : std::span<const std::string>());
  if (is_for_people)
    streams.out << fmt::format("{}, {}\n", counted(positions.size(), "tensor"),
                               request.exact_bytes ? counted(total_bytes, "byte") : human_size(total_bytes));
}

}  // namespace

int ls(const Arguments& arguments, Streams& streams) {
  LsRequest request;
  CommandLine line("ls", "List the tensors of an archive or a sharded model.", kLsExamples);
  line.positional(request.target, "TARGET", "Archive, sharded model, or path inside a mount.");
  line.positionals(request.globs, "GLOB", "Show only tensors whose name matches a GLOB.");
  line.choice(request.sort, "--sort", "KEY", "Order: name, size (largest first) or offset (the default).",
              {"name", "size", "offset"});
  line.flag(request.reverse, "-r,--reverse", "Reverse the order.");
  line.flag(request.exact_bytes, "-b,--bytes", "Print sizes as exact numbers of bytes.");
  line.flag(request.names_only, "--names", "Print names only, one per line.");
  line.flag(request.json, "--json", "Print a JSON object with an array of the tensors.")
      .excludes("--bytes")
      .excludes("--names");
  if (const auto code = line.parse(arguments, streams)) return *code;

  const auto target = open_target(request.target, Use::Tensors);
  if (!target) return report_failure(streams, target.error().message);
  int code = report_problems_and_neighbours(streams, *target->model);
  Positions positions = select(*target, request, streams, code);
  const TensorIndex& tensors = target->model->tensors();
  sort(positions, tensors, request);
  if (request.json) {
    print_json(*target->model, positions, streams.out);
  } else if (request.names_only) {
    print_names(tensors, positions, streams.out);
  } else {
    print_table(*target->model, positions, request, streams);
  }
  return streams.out ? code : kFailed;
}

}  // namespace stfs::tools
