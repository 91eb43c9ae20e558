// stfs info: summarizes an archive on one screen.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ostream>

#include "core/base/absolute_path.h"
#include "core/base/shell_word.h"
#include "core/model/scratch_directory.h"
#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/model_charts.h"
#include "tools/cli/verb.h"
#include "tools/sync/sync_state.h"
#include "tools/target/target.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"
#include "tools/text/table.h"

namespace stfs::tools {
namespace {

constexpr const char* kInfoExamples =
    "Padding is the white space at the end of the header. It leaves room for later edits and aligns the\n"
    "data. Alignment counts the tensors whose first byte lies at a multiple of 8 (every dtype can be used\n"
    "in place), 64 (a cache line) and 4096 (a page) in the file.\n"
    "\n"
    "Examples:\n"
    "  stfs info model.safetensors\n"
    "  stfs info /mnt/model                           the archive behind a mount\n"
    "  stfs info --plot model.safetensors             bytes by layer and dtype\n"
    "  stfs info --svg model.svg model.safetensors    the same as a picture\n"
    "  stfs info --json model.safetensors | jq .metadata";

/// A metadata value may be a whole document. On the screen it is cut after this many bytes.
constexpr std::size_t kShownValueBytes = 160;

struct Total {
  Dtype dtype = Dtype::U8;
  std::uint64_t tensors = 0;
  std::uint64_t parameters = 0;
  std::uint64_t size_bytes = 0;
};

struct Aligned {
  std::uint64_t to_bytes = 0;
  std::uint64_t tensors = 0;
};

struct Summary {
  std::uint64_t size_bytes = 0;  // of all files
  std::uint64_t shards = 0;      // number of usable shards
  std::vector<Total> by_dtype;   // dtypes that occur, largest total first
  std::array<Aligned, 3> alignment = {{{8, 0}, {64, 0}, {4096, 0}}};
  std::uint64_t data_size_bytes = 0;
  std::uint64_t header_size_bytes = 0;  // of all headers, like padding_bytes
  std::uint64_t padding_bytes = 0;
  std::uint64_t filler_bytes = 0;      // left by deleted tensors
  std::string version{};               // of the weight sync; empty: there is none
  std::vector<std::string> scratch{};  // files of mounts that are no tensors
};

/// Returns the size of the white space at the end of the header.
Result<std::uint64_t> header_padding(const ArchiveReader& archive) {
  std::vector<std::byte> scratch;
  const auto header = archive.read({kHeaderLengthBytes, archive.header_size_bytes()}, scratch);
  RETURN_IF_ERROR(header);
  const auto is_space = [](std::byte b) {
    return b == std::byte{' '} || b == std::byte{'\n'} || b == std::byte{'\t'} || b == std::byte{'\r'};
  };
  const auto last = std::find_if_not(header->rbegin(), header->rend(), is_space);
  return static_cast<std::uint64_t>(last - header->rbegin());
}

Result<Summary> summarize(const Model& model) {
  Summary summary;
  for (const Shard& shard : model.shards()) {
    if (!shard.archive) continue;
    const auto padding = header_padding(*shard.archive);
    RETURN_IF_ERROR(padding);
    summary.padding_bytes += *padding;
    summary.header_size_bytes += shard.archive->header_size_bytes();
    summary.size_bytes += shard.archive->opened_status().identity.size_bytes;
    summary.shards += 1;
    for (const ByteRange filler : shard.version->header->content.fillers) {
      summary.filler_bytes += filler.size_bytes;
    }
  }
  std::array<Total, kDtypeCount> totals;
  for (std::uint32_t position = 0; position < model.tensors().size(); ++position) {
    const Tensor tensor = model.tensors()[position];
    Total& total = totals[static_cast<std::size_t>(tensor.dtype)];
    total.dtype = tensor.dtype;
    total.tensors += 1;
    total.parameters += element_count(tensor.shape);
    total.size_bytes += tensor.data.size_bytes;
    summary.data_size_bytes += tensor.data.size_bytes;
    for (Aligned& aligned : summary.alignment) {
      if (model.file_range(position).offset % aligned.to_bytes == 0) aligned.tensors += 1;
    }
  }
  std::copy_if(totals.begin(), totals.end(), std::back_inserter(summary.by_dtype),
               [](const Total& total) { return total.tensors > 0; });
  std::stable_sort(summary.by_dtype.begin(), summary.by_dtype.end(),
                   [](const Total& a, const Total& b) { return a.size_bytes > b.size_bytes; });
  return summary;
}

void print_json(const Model& model, const Summary& summary, std::ostream& out) {
  Json document = json_document();
  document["path"] = json_path(model.path());
  document["size_bytes"] = summary.size_bytes;
  if (model.is_sharded()) {
    document["shards"] = Json::array();
    for (const Shard& shard : model.shards()) document["shards"].push_back(json_path(shard.path));
  }
  document["tensors"] = model.tensors().size();
  document["parameters"] = model.tensors().parameters();
  document["dtypes"] = Json::array();
  for (const Total& total : summary.by_dtype) {
    Json row;
    row["dtype"] = name_of(total.dtype);
    row["tensors"] = total.tensors;
    row["parameters"] = total.parameters;
    row["size_bytes"] = total.size_bytes;
    document["dtypes"].push_back(std::move(row));
  }
  document["metadata"] = Json::object();
  for (const auto& [key, value] : model.metadata()) document["metadata"][key] = value;
  document["header_size_bytes"] = summary.header_size_bytes;
  document["header_padding_bytes"] = summary.padding_bytes;
  if (!summary.version.empty()) document["version"] = summary.version;
  if (!model.is_sharded()) document["data_offset"] = model.front().data_offset();
  document["data_size_bytes"] = summary.data_size_bytes;
  document["free_bytes"] = summary.filler_bytes;
  document["scratch_files"] = summary.scratch;
  for (const Aligned& aligned : summary.alignment) {
    document["tensors_aligned_to"][std::to_string(aligned.to_bytes)] = aligned.tensors;
  }
  write_json(document, out);
}

void print_totals(const Summary& summary, bool exact, std::ostream& out) {
  using Align = Table::Align;
  Table table({Align::Left, Align::Right, Align::Right, Align::Right, Align::Right});
  using Row = std::array<std::string, 5>;
  const Row heading = {"dtype", "tensors", "parameters", "size", "share"};
  const auto cells = [&](const Total& total) {
    const double share = summary.data_size_bytes == 0 ? 0
                                                      : 100 * static_cast<double>(total.size_bytes) /
                                                            static_cast<double>(summary.data_size_bytes);
    return Row{std::string(name_of(total.dtype)), grouped(total.tensors), grouped(total.parameters),
               exact ? grouped(total.size_bytes) : human_size(total.size_bytes),
               fmt::format("{:.1f} %", share)};
  };
  table.print(out, summary.by_dtype, cells, heading);
}

void print_metadata(const Metadata& metadata, std::ostream& out) {
  if (metadata.empty()) {
    out << "metadata    none\n";
    return;
  }
  out << "metadata    " << (metadata.size() == 1 ? "1 entry" : grouped(metadata.size()) + " entries") << '\n';
  Table table({Table::Align::Left, Table::Align::Left});
  const auto cells = [](const auto& entry) {
    std::string value = printable(std::string_view(entry.second).substr(0, kShownValueBytes));
    if (value.empty()) value = "\"\"";
    if (entry.second.size() > kShownValueBytes) {
      value += fmt::format("... ({}; --json has all of it)", counted(entry.second.size(), "byte"));
    }
    return std::array<std::string, 2>{"  " + printable_name(entry.first), value};
  };
  table.print(out, metadata, cells);
}

void print_text(const Model& model, const Summary& summary, bool exact, std::ostream& out) {
  const std::uint64_t size_bytes = summary.size_bytes;
  const std::uint64_t parameters = model.tensors().parameters();
  const std::uint64_t tensors = model.tensors().size();
  out << "path        " << printable(model.path().string()) << '\n';
  if (model.is_sharded()) {
    out << fmt::format("shards      {} of {}\n", grouped(summary.shards), grouped(model.shards().size()));
  }
  if (!summary.version.empty()) out << "version     " << summary.version << " of a weight sync\n";
  out << "size        " << human_size(size_bytes) << " (" << counted(size_bytes, "byte") << ")\n";
  out << "tensors     " << grouped(tensors) << '\n';
  out << "parameters  " << grouped(parameters);
  if (const std::string count = human_count(parameters); !count.empty()) out << " (" << count << ')';
  out << '\n';
  out << fmt::format("header      {}, {} of them padding\n", counted(summary.header_size_bytes, "byte"),
                     grouped(summary.padding_bytes));
  out << "data        " << counted(summary.data_size_bytes, "byte");
  if (!model.is_sharded()) out << " from offset " << grouped(model.front().data_offset());
  if (summary.filler_bytes > 0) {
    out << ", and " << counted(summary.filler_bytes, "byte") << " free for new tensors";
  }
  out << '\n';
  if (summary.filler_bytes > 0) {
    out << fmt::format(
        "fillers     other programs show free bytes as tensors {}N: `stfs compact {}` removes them\n",
        kFillerPrefix, shell_word(model.path().native()));
  }
  if (!summary.scratch.empty()) {
    out << "scratch     " << counted(summary.scratch.size(), "file") << " that "
        << (summary.scratch.size() == 1 ? "is no tensor:" : "are no tensors:");
    for (const std::string& name : summary.scratch) out << ' ' << printable_name(name);
    out << '\n';
  }
  out << fmt::format("alignment   of {}: {} at multiples of 8, {} of 64, {} of 4096\n",
                     counted(tensors, "tensor"), grouped(summary.alignment[0].tensors),
                     grouped(summary.alignment[1].tensors), grouped(summary.alignment[2].tensors));
  print_metadata(model.metadata(), out);
  if (tensors == 0) return;
  out << '\n';
  print_totals(summary, exact, out);
}

}  // namespace

int info(const Arguments& arguments, Streams& streams) {
  std::string named;
  bool exact_bytes = false;
  bool json = false;
  CommandLine line("info", "Show totals by dtype, metadata, header and alignment of a model.", kInfoExamples);
  line.positional(named, "TARGET", "Archive, sharded model, or path inside a mount.");
  line.flag(exact_bytes, "-b,--bytes", "Print sizes in the table as exact numbers of bytes.");
  PlotRequest plot;
  declare_plot_options(line, plot, "bars with the bytes of each layer, by dtype");
  line.flag(plot.is_replacing, "-f,--force", "With --svg: replace FILE if it exists.");
  line.flag(json, "--json", "Print a JSON object.").excludes("--bytes").excludes("--plot");
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (const auto mistake = mistake_in(line, plot)) return report_wrong_usage(streams, *mistake);

  const auto target = open_target(named, Use::Model);
  if (!target) return report_failure(streams, target.error().message);
  auto summary = summarize(*target->model);
  if (!summary) return report_failure(streams, summary.error().message);
  // An address has no directory on this machine.
  const std::filesystem::path& path = target->model->path();
  const auto version = is_url(path) ? Result<std::optional<sync::VersionNumber>>(std::nullopt)
                                    : sync::read_sync_state(path.parent_path());
  if (version && *version) summary->version = (*version)->text;
  summary->scratch = scratch_files_of(*target->model);
  if (json) {
    print_json(*target->model, *summary, streams.out);
  } else {
    print_text(*target->model, *summary, exact_bytes, streams.out);
  }
  if (plot.needs_charts()) {
    if (plot.is_wanted) streams.out << '\n';
    const std::array charts = {chart_of_sizes(*target->model)};
    const auto shown = show_charts(charts, plot, {target->model.get()}, streams);
    if (!shown) return report_failure(streams, shown.error().message);
  }
  int code = report_problems_and_neighbours(streams, *target->model);
  if (!version) code = report_failure(streams, version.error().message);
  return streams.out ? code : kFailed;
}

}  // namespace stfs::tools
