// stfs slice: prints some elements of a tensor, selected by NumPy's basic indexing.
#include "core/tensor/slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <ostream>

#include "core/archive/slice_reader.h"
#include "core/model/common_mode.h"
#include "core/tensor/npy_writer.h"
#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/output_path.h"
#include "tools/cli/progress.h"
#include "tools/cli/verb.h"
#include "tools/target/target.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

/// Bytes that are gathered at a time. Enough to make the cost of the system calls negligible.
constexpr std::uint64_t kSlicePieceBytes = 4U << 20U;

constexpr const char* kSliceExamples =
    "[TEXT] is NumPy's basic indexing: integers, ranges with steps, negative numbers and one ..., separated\n"
    "by commas. The elements are row-major and little-endian. With --npy, or if FILE ends in .npy, the "
    "output\n"
    "is a NumPy file (BF16 and fp8 as unsigned integers of their size). Quote the brackets for the shell. A\n"
    "name may have brackets of its own: the last ones are the slice. Only the needed bytes are read.\n"
    "\n"
    "Examples:\n"
    "  stfs slice model.safetensors 'lm_head.weight[:10]' -o first.npy     the first ten rows\n"
    "  stfs slice model.safetensors 'lm_head.weight[..., ::-2]' | xxh128sum\n"
    "  stfs slice model.safetensors 'model.norm.weight[5]' | od -A n -t f4\n"
    "  stfs slice --json model.safetensors 'lm_head.weight[:, 7]'          its shape and size\n"
    "  stfs slice /mnt/model/lm_head.weight '[-1]' -o last.npy             a tensor's file needs no name";

struct SliceRequest {
  std::string target;
  std::string selected;
  std::string output;  // path; empty: standard output
  bool is_npy = false;
  bool is_raw = false;
  bool force = false;
  bool json = false;
};

/// The text NAME[TEXT], split at the last opening bracket.
struct Selection {
  std::string name;
  std::string text;
};

std::optional<Selection> split(const std::string& argument) {
  const std::size_t bracket = argument.rfind('[');
  if (bracket == std::string::npos || !argument.ends_with(']')) return std::nullopt;
  return Selection{argument.substr(0, bracket), argument.substr(bracket + 1, argument.size() - bracket - 2)};
}

/// Takes "byte N: " from the beginning of a message of parse_slice(). Returns N; nothing if it is not there.
std::optional<std::size_t> take_place(std::string& message) {
  constexpr std::string_view kBegin = "byte ";
  if (!message.starts_with(kBegin)) return std::nullopt;
  std::size_t place = 0;
  const char* const end = message.data() + message.size();
  const auto number = std::from_chars(message.data() + kBegin.size(), end, place);
  if (number.ec != std::errc() || !std::string_view(number.ptr, end).starts_with(": ")) return std::nullopt;
  message.erase(0, static_cast<std::size_t>(number.ptr - message.data()) + 2);
  return place;
}

/// Reports a mistake in the slice's text, with a caret below its place.
int report_wrong_slice(const SliceRequest& request, const Selection& selection, Error error,
                       Streams& streams) {
  constexpr std::size_t kMostShown = 120;  // in a longer line the caret could point anywhere
  const std::string before = request.selected.substr(0, request.selected.size() - selection.text.size() - 1);
  const auto place = take_place(error.message);
  report_failure(streams, fmt::format("{}: {}: {}", request.target, request.selected, error.message));
  if (!place || *place > selection.text.size()) return kFailed;
  const std::string shown = printable(before + selection.text.substr(0, *place));
  const std::string all = printable(request.selected);
  if (all.size() > kMostShown) return kFailed;
  streams.err << "  " << all << "\n  " << std::string(display_width(shown), ' ') << "^\n";
  return kFailed;
}

struct Found {
  std::uint32_t tensor = 0;
  Slice slice;
  std::string head;  // the header of an .npy file
};

/// Finds the slice. Reports the reason if there is none.
std::optional<Found> find(const Target& target, const SliceRequest& request, const Selection& selection,
                          Streams& streams) {
  const auto position = target.tensor ? Result<std::uint32_t>(*target.tensor)
                                      : find_tensor(*target.model, request.target, selection.name);
  if (!position) {
    report_failure(streams, position.error().message);
    return std::nullopt;
  }
  const Tensor tensor = target.model->tensors()[*position];
  auto slice = parse_slice(selection.text, tensor.dtype, tensor.shape);
  if (!slice) {
    report_wrong_slice(request, selection, std::move(slice).error(), streams);
    return std::nullopt;
  }
  Found found{*position, std::move(*slice), {}};
  if (request.is_npy) {
    found.head = npy_header(npy_form(tensor.dtype, found.slice.shape, found.slice.size_bytes));
  }
  return found;
}

/// Passes the slice's bytes to `bool write(span)`, piece by piece, until `write` returns false.
template <class Write>
Result<void> read_pieces(const Model& model, const Found& found, Write&& write) {
  const ArchiveReader& archive = model.archive_of(found.tensor);
  const ByteRange whole = model.file_range(found.tensor);
  const Slice& slice = found.slice;
  std::vector<std::byte> scratch;
  const TensorBytes tensor = {
      .read =
          [&](ByteRange range) {
            return archive.read({whole.offset + range.offset, range.size_bytes}, scratch);
          },
      .copy_from = [&](const ByteSource::Copy& copy) { return archive.copy_from(whole, copy); }};
  std::vector<std::byte> gathered;
  for (std::uint64_t offset = 0; offset < slice.size_bytes; offset += kSlicePieceBytes) {
    const ByteRange piece{offset, std::min(kSlicePieceBytes, slice.size_bytes - offset)};
    if (slice.is_contiguous()) {
      const auto bytes = tensor.read({slice.first_byte + offset, piece.size_bytes});
      RETURN_IF_ERROR(bytes);
      if (!write(*bytes)) return {};
      continue;
    }
    gathered.resize(static_cast<std::size_t>(piece.size_bytes));
    RETURN_IF_ERROR(read_slice(slice, piece, tensor, gathered));
    if (!write(std::span<const std::byte>(gathered))) return {};
  }
  return {};
}

Result<void> write_stream(const Model& model, const Found& found, std::ostream& out) {
  out << found.head;
  return read_pieces(model, found, [&](std::span<const std::byte> bytes) {
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return static_cast<bool>(out);
  });
}

Result<void> write_file(const Model& model, const Found& found, const SliceRequest& request,
                        Streams& streams) {
  auto file = create_output(request.output, model, request.force, mode_of_tensor(model, found.tensor));
  RETURN_IF_ERROR(file);
  RETURN_IF_ERROR(file->reserve(found.head.size() + found.slice.size_bytes));
  Result<void> written = file->append(std::as_bytes(std::span(found.head)));
  RETURN_IF_ERROR(written);
  Work work(watch_on(streams));
  work.begin(found.slice.size_bytes);
  const auto read = read_pieces(model, found, [&](std::span<const std::byte> bytes) {
    written = file->append(bytes);
    if (!work.advance(bytes.size()) && written) {
      written = fail(ErrorCode::System, EINTR, request.output + ": interrupted, nothing is left");
    }
    return written.has_value();
  });
  RETURN_IF_ERROR(read);
  RETURN_IF_ERROR(written);
  return file->finish();
}

void print(const SliceRequest& request, const Selection& selection, const Tensor& tensor, const Found& found,
           const Model& model, std::ostream& out) {
  const Slice& slice = found.slice;
  if (!request.json) {
    out << fmt::format("wrote {}: {}[{}]: {} {}, {}\n", printable(request.output),
                       printable_name(tensor.name), printable(selection.text), name_of(tensor.dtype),
                       shape_text(slice.shape), human_size(slice.size_bytes));
    return;
  }
  Json document = json_document();
  document["path"] = json_path(model.archive_of(found.tensor).path());
  document["name"] = tensor.name;
  document["slice"] = selection.text;
  document["dtype"] = name_of(tensor.dtype);
  document["shape"] = slice.shape;
  document["size_bytes"] = slice.size_bytes;
  if (!request.output.empty()) {
    document["output"] = json_path(request.output);
    document["format"] = request.is_npy ? "npy" : "raw";
  }
  write_json(document, out);
}

/// Returns the mistake in the arguments, or nothing.
std::string mistake_in(const SliceRequest& request, const Target& target,
                       const std::optional<Selection>& selection) {
  if (!selection) {
    return fmt::format("{}: is not NAME[TEXT]: 'NAME[...]' is the whole tensor", request.selected);
  }
  if (target.tensor && !selection->name.empty()) {
    return request.target + ": is a tensor's file: give '[TEXT]' without a NAME";
  }
  return {};
}

}  // namespace

int slice(const Arguments& arguments, Streams& streams) {
  SliceRequest request;
  CommandLine line("slice", "Write some elements of a tensor, selected as in NumPy.", kSliceExamples);
  line.positional(request.target, "TARGET", "Archive, sharded model, or path inside a mount.");
  line.positional(request.selected, "NAME[TEXT]",
                  "Tensor and its selected elements. Only [TEXT] if TARGET is a tensor's file.");
  line.file(request.output, "-o,--output", "FILE", "Write to FILE once all is read. - is standard output.");
  line.flag(request.is_npy, "--npy", "Write the header of a NumPy file before the elements.");
  line.flag(request.is_raw, "--raw", "Write only the elements, even if the name of FILE ends in .npy.")
      .excludes("--npy");
  line.flag(request.force, "-f,--force", "Replace FILE if it exists. Write binary data to a terminal too.");
  line.flag(request.json, "--json", "Describe the slice as a JSON object. Without -o, write no data.");
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (request.output == "-" && request.json) {
    return report_wrong_usage(streams, "--json and --output -: only one can have standard output");
  }
  if (request.output == "-") request.output.clear();
  request.is_npy = request.is_npy || (!request.is_raw && request.output.ends_with(".npy"));

  const auto target = open_target(request.target, Use::Tensors);
  if (!target) return report_failure(streams, target.error().message);
  report_not_shown(streams, *target->model);
  const auto selection = split(request.selected);
  if (const std::string mistake = mistake_in(request, *target, selection); !mistake.empty()) {
    return report_wrong_usage(streams, mistake);
  }
  const auto found = find(*target, request, *selection, streams);
  if (!found) return kFailed;

  const bool has_data_on_stream = request.output.empty() && !request.json;
  if (has_data_on_stream && streams.out_is_terminal && !request.force) {
    return report_failure(
        streams,
        "standard output is a terminal: send the bytes to a file or a program, or use -o or --force");
  }
  const Model& model = *target->model;
  std::optional<InterruptGuard> guard;  // only needed if an unfinished file could be left behind
  if (!request.output.empty()) guard.emplace();
  Result<void> written;
  if (has_data_on_stream) written = write_stream(model, *found, streams.out);
  if (!request.output.empty()) written = write_file(model, *found, request, streams);
  if (!written) return report_failure(streams, written.error().message);
  if (!has_data_on_stream) {
    print(request, *selection, model.tensors()[found->tensor], *found, model, streams.out);
  }
  return streams.out ? kDone : kFailed;
}

}  // namespace stfs::tools
