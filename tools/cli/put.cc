// stfs put: replaces the content of one tensor, completely or not at all.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>
#include <ostream>
#include <vector>

#include "core/base/shell_word.h"
#include "tools/cli/change.h"
#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/new_tensor.h"
#include "tools/cli/tensor_source.h"
#include "tools/cli/verb.h"
#include "tools/target/target.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

constexpr const char* kPutExamples =
    "FILE is a NumPy file if its name ends in .npy (same dtype and shape, C order, little-endian; BF16 and\n"
    "fp8 as unsigned integers or void of their size). FILE is an archive if its name ends in .safetensors, "
    "or\n"
    "with --from-tensor (same dtype and shape). Any other FILE has raw bytes of exactly the tensor's size; "
    "-\n"
    "reads raw bytes from standard input. After any failure the archive holds the new tensor or the old "
    "one.\n"
    "With --create, NAME may be new, and a tensor gets the dtype and shape of FILE, or of --dtype and "
    "--shape.\n"
    "Raw bytes without --shape have one dimension.\n"
    "\n"
    "Examples:\n"
    "  stfs put model.safetensors lm_head.weight lm_head.bin\n"
    "  stfs put model.safetensors model.norm.weight norm.npy\n"
    "  stfs put model.safetensors lm_head.weight tuned.safetensors\n"
    "  stfs put model.safetensors lm_head.weight --from-tensor model.embed_tokens.weight model.safetensors\n"
    "  stfs put --create model.safetensors adapter.weight adapter.npy\n"
    "  make-weights | stfs put model.safetensors lm_head.weight -\n"
    "  stfs put /mnt/model/lm_head.weight lm_head.bin     a tensor's file needs no name";

struct PutRequest {
  std::string target;
  std::vector<std::string> name_and_file;
  SourceName source;
  EditOptions options;
  bool creates = false;
  std::string dtype;
  std::string shape;
};

void print(const PutRequest& request, const std::filesystem::path& path, const Tensor& tensor,
           std::ostream& out) {
  if (!request.options.json) {
    out << fmt::format("{} {}: {} {}, {}\n", request.options.is_dry_run ? "would change" : "changed",
                       printable_name(tensor.name), name_of(tensor.dtype), shape_text(tensor.shape),
                       human_size(tensor.data.size_bytes));
    return;
  }
  Json document = json_document();
  document["path"] = json_path(path);
  document["changed"] = !request.options.is_dry_run;
  document.update(json_of(tensor));
  write_json(document, out);
}

/// Gives the tensor the bytes of the source, and its dtype and shape.
/// @param path  for the report.
Result<int> put_tensor(const PutRequest& request, const std::filesystem::path& path, const Tensor& tensor,
                       Change& change, Streams& streams) {
  auto source = TensorSource::open(request.source, tensor, streams.in);
  if (!source) return report_failure(streams, source.error().message);
  if (auto allowed = source->check_readers(change.model()); !allowed)
    return report_failure(streams, allowed.error().message);
  if (source->model() != nullptr) report_not_shown(streams, *source->model());
  const auto fill = [&] {
    auto done = change.write(tensor.name, [&source](ByteRange piece) { return source->read(piece); });
    return done ? source->check_end() : done;
  };
  // Without --create a dry run has opened the model for reading only.
  if (request.creates || !request.options.is_dry_run) {
    auto done =
        change.what().put(std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()});
    if (done) done = change.carry_out(tensor.data.size_bytes, fill);
    RETURN_IF_ERROR(done);
  }
  print(request, path, tensor, streams.out);
  streams.out.flush();  // before `change` is destroyed: a late interrupt then ends the process
  return streams.out ? kDone : kFailed;
}

/// Makes a tensor, or gives it another dtype and shape.
Result<int> create(const PutRequest& request, Streams& streams) {
  const std::string& name = request.name_and_file.front();
  const auto parsed = parse_form(request.dtype, request.shape);
  if (!parsed) return report_wrong_usage(streams, parsed.error().message);
  const auto change = open_for_edit(request.target, request.options, streams);
  if (!change) return kFailed;
  // Not in place, even if dtype and shape stay: programs that have the tensor open keep its bytes.
  if (const auto edit = change->what().edit(); !edit) return report_failure(streams, edit.error().message);
  const auto form = complete_form(*parsed, request.source, name);
  if (!form) return report_failure(streams, form.error().message);
  const auto size_bytes = data_size_bytes(*form->dtype, *form->shape);
  if (!size_bytes) return report_failure(streams, size_bytes.error().message);
  const Tensor tensor{.name = name, .dtype = *form->dtype, .shape = *form->shape, .data = {0, *size_bytes}};
  return put_tensor(request, change->model().path(), tensor, *change, streams);
}

/// Fails if another program has given the tensor another form since the first attempt.
/// @param form  the tensor's form at the first attempt.
Result<void> check_form(const Tensor& tensor, std::optional<TensorForm>& form) {
  if (!form) form = {.dtype = tensor.dtype, .shape = std::vector(tensor.shape.begin(), tensor.shape.end())};
  if (form->dtype == tensor.dtype && std::ranges::equal(*form->shape, tensor.shape)) return {};
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              fmt::format("{}: another program has given it another dtype or shape, {} {}: not changed",
                          printable_name(tensor.name), name_of(tensor.dtype), shape_text(tensor.shape)));
}

/// Gives a tensor new bytes.
/// @param form  gets the tensor's form at the first attempt.
Result<int> replace(const PutRequest& request, std::optional<TensorForm>& form, Streams& streams) {
  const bool has_name = request.name_and_file.size() == 2;
  auto target = open_target(request.target, Use::Change,
                            {.access = request.options.is_dry_run ? Access::ReadOnly : Access::ReadWrite});
  if (!target) return report_failure(streams, target.error().message);
  report_recovered(streams, *target->model);
  if (target->tensor && has_name) {
    return report_wrong_usage(streams,
                              request.target + ": is a tensor's file: NAME needs an archive or a mount");
  }
  if (!target->tensor && !has_name) {
    return report_wrong_usage(
        streams, "NAME and FILE are required: `stfs ls " + shell_word(request.target) + "` prints the names");
  }
  auto position = target->tensor ? Result<std::uint32_t>(*target->tensor)
                                 : find_tensor(*target->model, request.target, request.name_and_file.front());
  if (!position && has_name) {
    report_failure(streams, position.error().message);
    return report_failure(streams, "--create makes a new tensor");
  }
  if (!position) return report_failure(streams, position.error().message);
  const Tensor tensor = target->model->tensors()[*position];
  if (auto same = check_form(tensor, form); !same) return report_failure(streams, same.error().message);
  const std::filesystem::path path = target->model->archive_of(*position).path();
  Change change(streams, std::move(target->model), request.options);
  return put_tensor(request, path, tensor, change, streams);
}

}  // namespace

int put(const Arguments& arguments, Streams& streams) {
  PutRequest request;
  std::string from_tensor;
  CommandLine line("put", "Replace the content of one tensor, completely or not at all.", kPutExamples);
  line.usage("TARGET [NAME] FILE");
  line.usage("--create TARGET NAME FILE");
  line.positional(request.target, "TARGET", "Archive, sharded model, or path inside a mount.");
  line.positionals(request.name_and_file, "NAME FILE",
                   "Tensor, and the file with its new bytes. No NAME if TARGET is a tensor's file.");
  line.text(from_tensor, "--from-tensor", "NAME2",
            "Take the tensor NAME2 of the archive FILE. Default: NAME.");
  line.flag(request.source.is_raw, "--raw", "Read FILE as raw bytes, whatever its name.")
      .excludes("--from-tensor");
  line.flag(request.creates, "-c,--create", "Make a new tensor, or change the dtype and shape of NAME.");
  line.text(request.dtype, "--dtype", "DTYPE", "With --create: the dtype, if FILE does not tell it.")
      .suggests(all_dtype_names());
  line.text(request.shape, "--shape", "SHAPE",
            "With --create: the shape, such as 4096,4096, if FILE does not tell it.");
  line.flag(request.options.is_dry_run, "-n,--dry-run",
            "Check all that can be checked without reading FILE. Change nothing.");
  add_keep_space(line, request.options.keeps_space);
  add_change_options(line, request.options.change);
  line.flag(request.options.json, "--json", "Describe the change as a JSON object.");
  if (const auto code = line.parse(arguments, streams)) return *code;
  if (request.name_and_file.empty() || request.name_and_file.size() > 2) {
    return report_wrong_usage(streams, "NAME and FILE are required, without further arguments");
  }
  if (!request.creates && (line.has("--dtype") || line.has("--shape"))) {
    return report_wrong_usage(streams, "--dtype and --shape need --create");
  }
  request.source.file = request.name_and_file.back();
  if (line.has("--from-tensor")) request.source.from_tensor = from_tensor;

  const auto attempt = [&](const std::function<Result<int>()>& work) {
    if (request.source.file != "-") return attempt_beside_others(request.options.change, streams, work);
    const auto done = work();  // standard input can be read once
    return done ? *done : report_failure(streams, done.error().message);
  };
  const bool has_name = request.name_and_file.size() == 2;
  if (request.creates && has_name) return attempt([&] { return create(request, streams); });
  if (request.creates) {
    return report_wrong_usage(
        streams, "NAME and FILE are required with --create, and TARGET is the model, not a tensor's file");
  }
  std::optional<TensorForm> form;
  return attempt([&] { return replace(request, form, streams); });
}

}  // namespace stfs::tools
