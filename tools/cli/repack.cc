// stfs repack: writes the tensors of a model into a new archive, or into new shards.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <ostream>
#include <thread>
#include <utility>

#include "core/base/parallel.h"
#include "core/model/model_directory.h"
#include "tools/cli/command_line.h"
#include "tools/cli/delta_output.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/output_path.h"
#include "tools/cli/repack_output.h"
#include "tools/cli/repack_plan.h"
#include "tools/cli/verb.h"
#include "tools/device/conversion.h"
#include "tools/target/journal_text.h"
#include "tools/target/target.h"
#include "tools/text/json_document.h"
#include "tools/text/near_names.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"
#include "tools/text/table.h"

namespace stfs::tools {
namespace {

constexpr const char* kRepackExamples =
    "SOURCE stays as it is. OUT is a new archive. If OUT ends in .safetensors.index.json, it is a new "
    "index,\n"
    "and the shards NAME-00001-of-0000N.safetensors are written beside it. Metadata is kept. A GLOB is "
    "matched\n"
    "against whole names; * matches dots and slashes too. Options with a GLOB may be repeated.\n"
    "The format has no gaps between tensors: --align places the first one. With --order reference each "
    "tensor\n"
    "is then aligned to its elements. With --order name, layer 2 comes before layer 10.\n"
    "--dtype names each tensor that it matches and leaves as it is: integers, and scales of quantized "
    "tensors.\n"
    "FP8, F6 and F4 tensors with scales beside them need --dequantize, which multiplies the values by their\n"
    "scales and leaves the scales out, or --cast, which converts the values alone. Scales that are known:\n"
    "weight_scale_inv in blocks of 128 x 128, weight_scale of a tensor, a row or such a block, and F8_E8M0 "
    "of\n"
    "32 elements each. For others --dequantize fails and writes nothing. A scale is never narrowed.\n"
    "\n"
    "Examples:\n"
    "  stfs repack model.safetensors packed.safetensors              align the data to pages\n"
    "  stfs repack model.safetensors.index.json joined.safetensors   join shards\n"
    "  stfs repack --shard-size 2G model.safetensors split.safetensors.index.json\n"
    "  stfs repack --keep '*.mlp.*' model.safetensors mlp.safetensors\n"
    "  stfs repack --drop 'lm_head.*' model.safetensors body.safetensors\n"
    "  stfs repack --dtype '*.norm.*=F32' --dtype BF16 model.safetensors bf16.safetensors\n"
    "  stfs repack --dtype bfloat16 --dequantize fp8.safetensors bf16.safetensors\n"
    "  stfs repack --delta kept.delta.safetensors model.safetensors variant.safetensors\n"
    "  stfs repack --dry-run --order name model.safetensors sorted.safetensors";

struct RepackRequest {
  std::string source;
  std::string out;
  std::vector<std::string> dtypes;
  std::string order = "source";
  std::string align = "4K";
  std::string slack = "64K";
  std::string shard_size = "5GB";  // as save_pretrained() of the transformers library
  std::string delta;
  RepackOptions options;
  RepackOutput output;
  bool is_dequantizing = false;
  bool is_casting = false;
  bool is_dry_run = false;
  bool json = false;
};

/// Parses [GLOB=]DTYPE. A name may contain "=", a dtype does not.
Result<DtypeRule> parse_rule(const std::string& text) {
  const std::size_t at = text.rfind('=');
  const auto dtype =
      device::conversion_target_named(at == std::string::npos ? text : std::string_view(text).substr(at + 1));
  RETURN_IF_ERROR(dtype);
  return DtypeRule{at == std::string::npos ? "*" : text.substr(0, at), *dtype};
}

/// Returns the mistake in the value of an option that takes a size, or nothing.
std::string take_size(std::string_view option, const std::string& text, std::uint64_t& to) {
  const auto size_bytes = parse_size(text);
  if (!size_bytes) return fmt::format("{}: \"{}\": is not a size such as 64K, 2M or 5GB", option, text);
  to = *size_bytes;
  return {};
}

/// Completes the options. Returns the mistake on the command line, or nothing.
std::string complete(RepackRequest& request, const CommandLine& line) {
  RepackOptions& options = request.options;
  options.out = request.out;
  if (request.out.empty()) return "OUT is empty: name the archive or index to write";
  if (line.has("--delta") && request.delta.empty()) return "--delta: the name of DELTA is empty";
  for (const std::string& text : request.dtypes) {
    auto rule = parse_rule(text);
    if (!rule) return "--dtype: " + rule.error().message;
    options.dtypes.push_back(std::move(*rule));
  }
  for (const char* option : {"--dequantize", "--cast"}) {
    if (line.has(option) && request.dtypes.empty()) return fmt::format("{}: needs --dtype", option);
  }
  options.quantized = request.is_dequantizing ? Quantized::Dequantize
                      : request.is_casting    ? Quantized::Cast
                                              : Quantized::Refuse;
  options.order = request.order == "name"        ? TensorOrder::Name
                  : request.order == "reference" ? TensorOrder::Reference
                                                 : TensorOrder::Source;
  std::uint64_t& alignment = request.output.alignment;
  if (auto mistake = take_size("--align", request.align, alignment); !mistake.empty()) return mistake;
  if (!std::has_single_bit(alignment) || alignment < 8 || alignment > 64U << 20U) {
    return "--align: must be a power of two from 8 to 64M";
  }
  std::uint64_t& slack_bytes = request.output.slack_bytes;
  if (auto mistake = take_size("--slack", request.slack, slack_bytes); !mistake.empty()) return mistake;
  if (slack_bytes > kMaxHeaderBytes) {
    return fmt::format("--slack: a header has at most {} bytes", grouped(kMaxHeaderBytes));
  }
  std::uint64_t shard_bytes = 0;
  if (auto mistake = take_size("--shard-size", request.shard_size, shard_bytes); !mistake.empty()) {
    return mistake;
  }
  if (shard_bytes == 0) return "--shard-size: must be at least 1";
  if (options.out.native().ends_with(kModelIndexSuffix)) {
    options.shard_bytes = shard_bytes;
  } else if (line.has("--shard-size")) {
    return fmt::format("--shard-size: OUT must be an index: its name must end in {}", kModelIndexSuffix);
  } else if (options.out.native().ends_with(".index.json")) {
    return fmt::format("OUT: the name of an index must end in {}", kModelIndexSuffix);
  }
  return {};
}

/// Returns the files that the plan writes, in the order in which they get their names.
std::vector<std::filesystem::path> paths_of(const RepackPlan& plan) {
  std::vector<std::filesystem::path> paths;
  for (const RepackedFile& file : plan.files) paths.push_back(file.path);
  if (plan.has_index) paths.push_back(plan.out);
  return paths;
}

/// Opens the source, with the delta on top if there is one.
Result<std::unique_ptr<Model>> open_source(const RepackRequest& request) {
  ModelOptions options;
  if (!request.delta.empty()) {
    auto delta = locate_target(request.delta, Use::Tensors);
    RETURN_IF_ERROR(delta);
    options.deltas = {std::move(delta->archive)};
  }
  return open_whole(request.source, Use::Tensors, options);
}

/// Reports the problems of a model. @return true if tensors or bytes may be missing. Metadata that differ
/// from shard to shard are no reason to refuse the model: the first value is used.
bool report_missing(Streams& streams, const Model& model) {
  if (report_problems(streams, model) == kDone) return false;
  return !not_shown_beside(model).empty() ||
         std::ranges::any_of(model.problems(), [](const ModelProblem& problem) {
           return problem.kind != ModelProblem::Kind::MetadataConflict;
         });
}

/// Explains globs that match no tensor, and files that can't be written. @return kFailed if there are any.
int report_obstacles(const RepackRequest& request, const Model& model, const RepackPlan& plan,
                     Streams& streams) {
  int code = kDone;
  for (const std::string& glob : plan.unused_globs) {
    code = report_failure(streams, request.source + ": " + unmatched_text(glob, {&model.tensors()}));
  }
  if (plan.tensors.empty() && code == kDone) {
    code = report_failure(streams, request.source + ": no tensor is left to write");
  }
  for (const std::filesystem::path& path : paths_of(plan)) {
    if (const auto why = obstacle_at(path, {{&model, "SOURCE"}}, request.output.is_replacing)) {
      code = report_failure(streams, path.native() + ": " + *why);
    }
  }
  return code;
}

std::string dtype_text(const RepackedTensor& tensor, const Model& model) {
  const Dtype source = model.tensors()[tensor.source].dtype;
  if (source == tensor.dtype) return std::string(name_of(tensor.dtype));
  return fmt::format("{} from {}", name_of(tensor.dtype), name_of(source));
}

void print_text(const RepackRequest& request, const Model& model, const RepackPlan& plan,
                std::uint64_t overflows, std::ostream& out) {
  if (request.is_dry_run) {
    using Align = Table::Align;
    Table table({Align::Left, Align::Left, Align::Left, Align::Right});
    table.print(out, plan.tensors, [&model](const RepackedTensor& tensor) {
      const Tensor source = model.tensors()[tensor.source];
      return std::array<std::string, 4>{printable_name(source.name), dtype_text(tensor, model),
                                        shape_text(source.shape), human_size(tensor.size_bytes)};
    });
  }
  out << fmt::format("{} {}: {}, {}", request.is_dry_run ? "would write" : "wrote",
                     printable(plan.out.native()), counted(plan.tensors.size(), "tensor"),
                     human_size(plan.data_bytes));
  if (plan.has_index) out << " in " << counted(plan.files.size(), "shard");
  out << '\n';
  if (plan.left_out > 0) out << "left out " << counted(plan.left_out, "tensor") << '\n';
  if (plan.converted > 0) {
    out << (request.is_dry_run ? "would convert " : "converted ") << counted(plan.converted, "tensor")
        << '\n';
  }
  if (plan.scales.size() > 0) {
    out << (request.is_dry_run ? "would apply" : "applied") << " the scales of "
        << counted(plan.scales.size(), "tensor") << '\n';
  }
  for (const KeptDtype& kept : plan.kept_dtypes) {
    const Tensor tensor = model.tensors()[kept.source];
    out << fmt::format("{} stays {}: {}\n", printable_name(tensor.name), name_of(tensor.dtype), kept.why);
  }
  if (overflows > 0) out << counted(overflows, "element") << " did not fit the new dtype\n";
}

void print_json(const RepackRequest& request, const Model& model, const RepackPlan& plan,
                std::uint64_t overflows, std::ostream& out) {
  JsonStream document(out);
  document.member("source", json_path(model.path()));
  document.member("path", json_path(plan.out));
  document.member("written", !request.is_dry_run);
  document.array("files", plan.files, [](const RepackedFile& file) {
    return Json{
        {"path", json_path(file.path)}, {"tensors", file.count}, {"data_size_bytes", file.data_bytes}};
  });
  document.array("tensors", plan.tensors, [&](const RepackedTensor& tensor) {
    const Tensor source = model.tensors()[tensor.source];
    return Json{{"name", source.name},
                {"dtype", name_of(tensor.dtype)},
                {"source_dtype", name_of(source.dtype)},
                {"shape", source.shape},
                {"size_bytes", tensor.size_bytes}};
  });
  document.member("data_size_bytes", plan.data_bytes);
  document.member("left_out", plan.left_out);
  document.member("applied_scales", plan.scales.size());
  document.array("kept_dtypes", plan.kept_dtypes, [&model](const KeptDtype& kept) {
    const Tensor tensor = model.tensors()[kept.source];
    return Json{{"name", tensor.name}, {"dtype", name_of(tensor.dtype)}, {"why", kept.why}};
  });
  if (!request.is_dry_run) document.member("overflows", overflows);
  document.end();
}

void declare(CommandLine& line, RepackRequest& request) {
  line.positional(request.source, "SOURCE", "Archive, sharded model, or root of a mount.");
  line.positional_file(request.out, "OUT", "Archive to write; or index, whose shards are written beside it.");
  line.file(request.delta, "--delta", "DELTA",
            "Write SOURCE with the changes of DELTA, which stfs diff --out or a mount has written.");
  line.texts(request.options.keep, "--keep", "GLOB", "Write only tensors whose name matches a GLOB.");
  line.texts(request.options.drop, "--drop", "GLOB", "Leave out tensors whose name matches.");
  line.texts(request.dtypes, "--dtype", "[GLOB=]DTYPE",
             "Convert floating-point tensors to DTYPE. The first GLOB that matches decides.")
      .suggests(device::conversion_target_names());
  line.flag(request.is_dequantizing, "--dequantize",
            "With --dtype: multiply quantized values by their scales, and leave the scales out.");
  line.flag(request.is_casting, "--cast", "With --dtype: convert quantized values without their scales.")
      .excludes("--dequantize");
  line.choice(request.order, "--order", "ORDER",
              "Order of the data: source (default), name, or reference (by alignment, then name).",
              {"source", "name", "reference"});
  line.text(request.align, "--align", "SIZE", "Start the data at a multiple of SIZE. Default: 4K.");
  line.text(request.slack, "--slack", "SIZE", "Leave SIZE in the header for later edits. Default: 64K.");
  line.text(request.shard_size, "--shard-size", "SIZE",
            "Begin a new shard before SIZE would be exceeded. Default: 5GB.");
  request.output.threads = std::max(std::thread::hardware_concurrency(), 1U);
  line.number(request.output.threads, "--threads", "N",
              "Convert with N threads. Default: the number of processors.", 1, kMostWorkers);
  line.flag(request.output.is_replacing, "-f,--force", "Replace files that exist.");
  line.flag(request.is_dry_run, "-n,--dry-run", "Check all and list what would be written. Write nothing.");
  line.flag(request.json, "--json", "Describe what was written as a JSON object.");
}

}  // namespace

int repack(const Arguments& arguments, Streams& streams) {
  RepackRequest request;
  CommandLine line("repack", "Write the tensors of a model into a new archive or new shards.",
                   kRepackExamples);
  declare(line, request);
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (const std::string mistake = complete(request, line); !mistake.empty()) {
    return report_wrong_usage(streams, mistake);
  }

  const auto source = open_source(request);
  if (!source) return report_failure(streams, source.error().message);
  const Model& model = **source;
  if (report_missing(streams, model)) {
    return report_failure(streams, fmt::format("{}: is not whole: nothing was written", request.source));
  }
  const auto plan = plan_repack(model, request.options);
  if (!plan) return report_failure(streams, fmt::format("{}: {}", request.source, plan.error().message));
  if (report_obstacles(request, model, *plan, streams) != kDone) return kFailed;

  std::uint64_t overflows = 0;
  const InterruptGuard guard;
  if (!request.is_dry_run) {
    if (model.delta()) {
      if (auto fits = check_base_bytes(model, streams); !fits) {
        return report_failure(streams, fits.error().message);
      }
    }
    const auto written = write_repacked(model, *plan, request.output, streams);
    if (!written) return report_failure(streams, written.error().message);
    overflows = *written;
  }
  request.json ? print_json(request, model, *plan, overflows, streams.out)
               : print_text(request, model, *plan, overflows, streams.out);
  return streams.out ? kDone : kFailed;
}

}  // namespace stfs::tools
