// stfs sample: writes a model for experiments, without a download.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "core/archive/archive_writer.h"
#include "core/base/version.h"
#include "core/storage/file.h"
#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/cli/sample_model.h"
#include "tools/cli/sample_values.h"
#include "tools/cli/verb.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

constexpr std::size_t kSamplePieceBytes = 4U << 20U;

constexpr const char* kSampleExamples =
    "The model looks like a small language model: model.layers.N.self_attn.q_proj.weight and so on, in "
    "BF16,\n"
    "F16 and F32. Values are random and finite, and the same for the same seed. --odd adds what few models\n"
    "have: one tensor of each of the 22 dtypes, scalars, empty tensors, and unusual legal names (slashes,\n"
    "\"..\", line feeds, 300 bytes, the empty name). PyTorch does not read all of these dtypes.\n"
    "SIZE is the size of the data: 64M, 1.5G (powers of 1024), 10GB.\n"
    "\n"
    "Examples:\n"
    "  stfs sample model.safetensors\n"
    "  stfs sample --layers 4 --hidden 256 model.safetensors\n"
    "  stfs sample --size 1G --seed 7 large.safetensors";

struct SampleRequest {
  std::string path;
  SampleSize size;
  std::string data_size;
  std::uint64_t seed = 0;
  bool odd = false;
  bool force = false;
  bool json = false;
};

Metadata metadata_of(const SampleRequest& request) {
  Metadata metadata{{"format", "pt"},
                    {"generator", std::string("stfs sample ") + build_version()},
                    {"seed", std::to_string(request.seed)},
                    {"layers", std::to_string(request.size.layers)},
                    {"hidden", std::to_string(request.size.hidden)}};
  if (request.odd) {
    metadata.emplace_back("note", "two lines,\nand Unicode: größer als null");
    metadata.emplace_back("empty", "");
  }
  return metadata;
}

/// Gains are near one, as in a trained model; all other values are small.
BitPattern pattern_of(const TensorSpec& tensor) {
  const bool is_gain = tensor.dtype == Dtype::F32 && tensor.name.ends_with("norm.weight");
  return is_gain ? gains() : weights_of(tensor.dtype);
}

Result<void> write(const SampleRequest& request, const std::vector<TensorSpec>& tensors, Streams& streams) {
  auto writer = ArchiveWriter::create(request.path, tensors, metadata_of(request), request.force);
  RETURN_IF_ERROR(writer);
  Work work(watch_on(streams));
  work.begin(total_bytes(tensors));
  std::vector<std::byte> buffer(kSamplePieceBytes);
  for (const TensorSpec& tensor : tensors) {
    SampleValues values(request.seed, tensor.name, pattern_of(tensor));
    for (std::uint64_t left = total_bytes({tensor}); left > 0;) {
      const std::span<std::byte> piece =
          std::span(buffer).first(std::min<std::uint64_t>(left, kSamplePieceBytes));
      values.fill(piece);
      RETURN_IF_ERROR(writer->append(piece));
      if (!work.advance(piece.size()))
        return fail(ErrorCode::System, EINTR, request.path + ": interrupted, nothing is left");
      left -= piece.size();
    }
  }
  return writer->finish();
}

void print(const SampleRequest& request, const std::vector<TensorSpec>& tensors, Streams& streams) {
  const auto made = system_storage().status(request.path);
  const std::uint64_t size_bytes = made ? made->identity.size_bytes : 0;
  if (!request.json) {
    streams.out << fmt::format("wrote {}: {} tensors, {}\n", printable(request.path), tensors.size(),
                               human_size(size_bytes));
    return;
  }
  Json document = json_document();
  document["path"] = json_path(request.path);
  document["size_bytes"] = size_bytes;
  document["tensors"] = tensors.size();
  document["data_size_bytes"] = total_bytes(tensors);
  document["seed"] = request.seed;
  document["layers"] = request.size.layers;
  document["hidden"] = request.size.hidden;
  document["vocabulary"] = request.size.vocabulary;
  write_json(document, streams.out);
}

/// Returns the contradiction between the numbers on the command line, or nothing.
std::string mistake_in(SampleRequest& request, bool hidden_given) {
  if (request.path.empty()) return "PATH is empty: name the archive to write";
  if (request.size.hidden % 8 != 0) return "--hidden: must be a multiple of 8";
  if (request.data_size.empty()) return {};
  const auto data_bytes = parse_size(request.data_size);
  if (!data_bytes)
    return fmt::format("--size: {}: is not a size such as 64M, 1.5G or 10GB", request.data_size);
  const std::uint64_t odd_bytes = request.odd ? total_bytes(specimens()) : 0;
  auto size = sized_to(*data_bytes, odd_bytes, hidden_given ? request.size.hidden : 0);
  if (!size) return size.error().message;
  request.size = *size;
  return {};
}

}  // namespace

int sample(const Arguments& arguments, Streams& streams) {
  SampleRequest request;
  CommandLine line("sample", "Write a model like a small language model, for experiments.", kSampleExamples);
  line.positional_file(request.path, "PATH", "Archive to write.");
  line.number(request.size.layers, "--layers", "N", "Number of layers. Default: 2.", 1, 100000);
  line.number(request.size.hidden, "--hidden", "N", "Width of a layer, a multiple of 8. Default: 64.", 8,
              65536);
  line.text(request.data_size, "--size", "SIZE",
            "Write about this much data, for example 1G. Sets the number of layers.")
      .excludes("--layers");
  line.number(request.seed, "--seed", "N", "Seed of the random values. Default: 0.", 0,
              std::numeric_limits<std::uint64_t>::max());
  line.flag(request.odd, "--odd", "Add tensors of all dtypes, with unusual shapes and names.");
  line.flag(request.force, "-f,--force", "Replace PATH if it exists.");
  line.flag(request.json, "--json", "Describe the archive as a JSON object.");
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (const std::string mistake = mistake_in(request, line.has("--hidden")); !mistake.empty()) {
    return report_wrong_usage(streams, mistake);
  }

  const auto there = system_storage().status(request.path);
  if (there && S_ISDIR(there->mode)) {
    return report_failure(streams, request.path + ": is a directory: name the archive to write");
  }
  if (!request.force && system_storage().status_of_name(request.path)) {
    return report_failure(streams, request.path + ": exists already: --force replaces it");
  }
  std::vector<TensorSpec> tensors = transformer(request.size);
  if (request.odd) std::ranges::move(specimens(), std::back_inserter(tensors));
  sort_for_writing(tensors);

  const InterruptGuard guard;
  if (auto written = write(request, tensors, streams); !written) {
    return report_failure(streams, written.error().message);
  }
  print(request, tensors, streams);
  return kDone;
}

}  // namespace stfs::tools
