// stfs cat: prints the raw bytes of tensors, row-major and little-endian, as in the archive.
#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "core/base/shell_word.h"
#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/verb.h"
#include "tools/target/target.h"

namespace stfs::tools {
namespace {

/// Bytes that are in memory at a time. The number makes the cost of the system calls negligible, and a tensor
/// of 100 GiB needs as little memory as one of 10 MiB.
constexpr std::uint64_t kSliceBytes = 8U << 20U;

constexpr const char* kCatExamples =
    "The bytes of several tensors follow each other with nothing between them. A NAME is a whole name, as\n"
    "`stfs ls --json` prints it. Names that start with a dash go after `--`.\n"
    "\n"
    "Examples:\n"
    "  stfs cat model.safetensors lm_head.weight > lm_head.bin\n"
    "  stfs cat model.safetensors model.norm.weight | od -A d -t f4 | head\n"
    "  stfs cat model.safetensors model.norm.weight lm_head.weight | xxh128sum\n"
    "  stfs cat /mnt/model/lm_head.weight | wc -c         a tensor's file needs no name\n"
    "  stfs cat '/mnt/model/.safetensors/slice/lm_head.weight[:2]' | wc -c     a view needs none either";

struct CatRequest {
  std::string target;
  std::vector<std::string> names;
  bool force = false;
};

Result<void> write_tensor(const Model& model, std::uint32_t tensor, std::ostream& out) {
  const ArchiveReader& archive = model.archive_of(tensor);
  const ByteRange range = model.file_range(tensor);
  std::vector<std::byte> scratch;
  for (std::uint64_t offset = range.offset; out && offset < range.end(); offset += kSliceBytes) {
    const auto bytes = archive.read({offset, std::min(kSliceBytes, range.end() - offset)}, scratch);
    RETURN_IF_ERROR(bytes);
    out.write(reinterpret_cast<const char*>(bytes->data()), static_cast<std::streamsize>(bytes->size()));
  }
  return {};
}

/// Prints a file in `.safetensors/`. Its bytes exist only in the mount.
Result<void> write_view(const std::filesystem::path& view, std::ostream& out) {
  const auto file = system_storage().open(view, Access::ReadOnly);
  RETURN_IF_ERROR(file);
  const auto size_bytes = (*file)->size_bytes();
  RETURN_IF_ERROR(size_bytes);
  std::vector<std::byte> buffer;
  for (std::uint64_t offset = 0; out && offset < *size_bytes; offset += buffer.size()) {
    buffer.resize(static_cast<std::size_t>(std::min(kSliceBytes, *size_bytes - offset)));
    RETURN_IF_ERROR((*file)->read(buffer, offset));
    out.write(reinterpret_cast<const char*>(buffer.data()), static_cast<std::streamsize>(buffer.size()));
  }
  return {};
}

}  // namespace

int cat(const Arguments& arguments, Streams& streams) {
  CatRequest request;
  CommandLine line("cat", "Write the bytes of tensors to standard output.", kCatExamples);
  line.positional(request.target, "TARGET", "Archive, sharded model, or path inside a mount.");
  line.positionals(request.names, "NAME", "Tensors, in the order in which they are written.");
  line.flag(request.force, "-f,--force", "Write binary data to a terminal too.");
  if (const auto code = line.parse(arguments, streams)) return *code;

  const auto target = open_target(request.target, Use::Bytes);
  if (!target) return report_failure(streams, target.error().message);
  if (target->model) report_not_shown(streams, *target->model);
  const bool is_one_file = target->tensor || target->view;
  if (is_one_file && !request.names.empty()) {
    return report_wrong_usage(streams,
                              request.target + ": is a tensor's file: NAME needs an archive or a mount");
  }
  if (!is_one_file && request.names.empty()) {
    return report_wrong_usage(streams,
                              "NAME is required: `stfs ls " + shell_word(request.target) + "` prints them");
  }
  // Find all tensors before the first byte is printed: half of the output would be worse than none.
  const auto tensors = find_tensors(*target, request.target, request.names);
  if (!tensors) return report_failure(streams, tensors.error().message);
  if (streams.out_is_terminal && !request.force) {
    return report_failure(
        streams, "standard output is a terminal: send the bytes to a file or a program, or use --force");
  }
  if (target->view) {
    if (auto written = write_view(*target->view, streams.out); !written) {
      return report_failure(streams, written.error().message);
    }
  }
  for (const std::uint32_t tensor : *tensors) {
    const auto written = write_tensor(*target->model, tensor, streams.out);
    if (!written) return report_failure(streams, written.error().message);
  }
  return streams.out ? kDone : kFailed;
}

}  // namespace stfs::tools
