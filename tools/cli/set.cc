// stfs set: changes metadata, and the dtype and shape of a tensor, in place.
#include <fmt/format.h>

#include <optional>
#include <ostream>
#include <utility>

#include "core/base/utf8.h"
#include "core/format/header.h"
#include "core/storage/file.h"
#include "tools/cli/change.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/new_tensor.h"
#include "tools/target/source_readers.h"
#include "tools/target/target.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

constexpr const char* kSetExamples =
    "--dtype and --shape give the bytes of the tensor NAME another meaning; the bytes stay. Their number "
    "must\n"
    "be what the new dtype and shape need. In a sharded model a key is set in the shards that have it, else\n"
    "in the first one. All changes happen at once, or none.\n"
    "\n"
    "Examples:\n"
    "  stfs set model.safetensors --metadata format=pt --metadata author=me\n"
    "  stfs set model.safetensors --metadata card=@card.md\n"
    "  stfs set model.safetensors --unset author\n"
    "  stfs set model.safetensors lm_head.weight --shape 256,128\n"
    "  stfs set model.safetensors model.norm.weight --dtype U32";

struct SetRequest {
  std::string target;
  std::vector<std::string> name;
  std::vector<std::string> metadata;
  std::vector<std::string> unset;
  std::string dtype;
  std::string shape;
  EditOptions options;
};

/// Returns the value of a text: "@FILE" is the text of a file, "@@TEXT" is "@TEXT".
Result<std::string> value_of(std::string text, const Model& target) {
  if (!text.starts_with('@')) return text;
  text.erase(0, 1);
  if (text.starts_with('@')) return text;
  const auto file = system_storage().open_behind(text, Links::Trusted);
  RETURN_IF_ERROR(file);
  RETURN_IF_ERROR(check_source_readers(target, **file, text));
  auto value = read_text(**file, kMaxHeaderBytes + 1);
  RETURN_IF_ERROR(value);
  if (value->size() > kMaxHeaderBytes) {
    return fail(ErrorCode::InvalidArgument, EFBIG,
                fmt::format("{}: has more than the {} bytes that a header can hold", text, kMaxHeaderBytes));
  }
  return value;
}

/// Makes the changes. @return the mistake in the command line, if there is one.
Result<std::string> make_changes(const SetRequest& request, const TensorForm& form, const Model& model,
                                 ModelEdit& edit) {
  for (const std::string& pair : request.metadata) {
    const std::size_t at = pair.find('=');
    if (at == std::string::npos || at == 0) {
      return fmt::format("--metadata: \"{}\": is not KEY=VALUE", pair);
    }
    const std::string key = pair.substr(0, at);
    auto value = value_of(pair.substr(at + 1), model);
    RETURN_IF_ERROR(value);
    if (!is_utf8(key) || !is_utf8(*value))
      return std::string(is_utf8(pair) ? "--metadata: the file's text is not UTF-8"
                                       : "--metadata: is not UTF-8");
    RETURN_IF_ERROR(edit.set_metadata(key, std::move(*value)));
  }
  for (const std::string& key : request.unset) {
    if (!model.metadata().find(key)) {
      return fail(ErrorCode::NotFound, ENOENT,
                  fmt::format("{}: has no metadata of the key \"{}\"", request.target, key));
    }
    RETURN_IF_ERROR(edit.set_metadata(key, std::nullopt));
  }
  if (request.name.empty()) return std::string();
  auto position = find_tensor(model, request.target, request.name.front());
  RETURN_IF_ERROR(position);
  const Tensor tensor = model.tensors()[*position];
  auto done = edit.reinterpret(tensor.name, form.dtype.value_or(tensor.dtype),
                               form.shape.value_or(std::vector(tensor.shape.begin(), tensor.shape.end())));
  if (!done) return tl::unexpected(std::move(done).error().within(request.target));
  return std::string();
}

Result<int> set_in_model(const SetRequest& request, const TensorForm& form, Streams& streams) {
  const auto change = open_for_edit(request.target, request.options, streams);
  if (!change) return kFailed;
  const auto edit = change->what().edit();
  RETURN_IF_ERROR(edit);
  const auto mistake = make_changes(request, form, change->model(), **edit);
  if (!mistake) return report_failure(streams, mistake.error().message);
  if (!mistake->empty()) return report_wrong_usage(streams, *mistake);
  RETURN_IF_ERROR(change->carry_out());
  const std::string_view done = change->what().is_empty() ? "nothing to change in " : "changed ";
  return change->report({.what = std::string(done) + printable(request.target)});
}

}  // namespace

int set(const Arguments& arguments, Streams& streams) {
  SetRequest request;
  CommandLine line("set", "Change metadata, or the dtype and shape of a tensor. No tensor's bytes change.",
                   kSetExamples);
  line.usage("TARGET [NAME]");
  line.positional(request.target, "TARGET", "Archive, sharded model, or root of a mount.");
  line.positionals(request.name, "NAME", "Tensor, for --dtype and --shape.");
  line.texts(request.metadata, "--metadata", "KEY=VALUE",
             "Set a key of the metadata. KEY=@FILE takes the text of a file. May be repeated.");
  line.texts(request.unset, "--unset", "KEY", "Remove a key of the metadata. May be repeated.");
  line.text(request.dtype, "--dtype", "DTYPE", "New dtype of NAME.").suggests(all_dtype_names());
  line.text(request.shape, "--shape", "SHAPE", "New shape of NAME, such as 4096,4096.");
  add_edit_options(line, request.options);
  add_keep_space(line, request.options.keeps_space);
  if (const auto code = line.parse(arguments, streams)) return *code;
  const bool has_form = line.has("--dtype") || line.has("--shape");
  if (request.name.size() > 1) return report_wrong_usage(streams, "name one tensor");
  if (has_form != !request.name.empty()) {
    return report_wrong_usage(streams, "NAME needs --dtype or --shape, and they need NAME");
  }
  if (!has_form && request.metadata.empty() && request.unset.empty()) {
    return report_wrong_usage(streams, "say what to set: --metadata, --unset, --dtype or --shape");
  }
  const auto form = parse_form(request.dtype, request.shape);
  if (!form) return report_wrong_usage(streams, form.error().message);

  return attempt_beside_others(request.options.change, streams,
                               [&] { return set_in_model(request, *form, streams); });
}

}  // namespace stfs::tools
