// Reads dtypes and shapes, from texts and from files.
#include "tools/cli/new_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "core/format/dtype_text.h"
#include "core/tensor/npy.h"
#include "tools/target/target.h"

namespace stfs::tools {
namespace {

tl::unexpected<Error> refuse_form(std::string why) {
  return fail(ErrorCode::InvalidArgument, EINVAL, std::move(why));
}

}  // namespace

std::vector<std::string> all_dtype_names() {
  std::vector<std::string> names;
  for (const Dtype dtype : all_dtypes()) names.emplace_back(name_of(dtype));
  return names;
}

Result<TensorForm> parse_form(const std::string& dtype, const std::string& shape) {
  TensorForm form;
  if (!dtype.empty()) {
    form.dtype = parse_dtype(dtype);
    if (!form.dtype) {
      return refuse_form(fmt::format("--dtype: \"{}\": is not a dtype such as BF16, F8_E4M3 or U8", dtype));
    }
  }
  if (!shape.empty()) {
    form.shape = shape_of_text(shape);
    if (!form.shape) {
      return refuse_form(fmt::format("--shape: \"{}\": is not a shape such as 4096,4096 or []", shape));
    }
  }
  return form;
}

Result<TensorForm> complete_form(TensorForm form, const SourceName& source, const std::string& name) {
  if (form.dtype && form.shape) return form;
  const bool is_npy = !source.is_raw && !source.from_tensor && source.file.ends_with(".npy");
  const bool is_archive = source.from_tensor || (!source.is_raw && source.file.ends_with(".safetensors"));
  if (is_archive) {
    auto target = open_target(source.file, Use::Tensors, {.links = Links::Trusted});
    RETURN_IF_ERROR(target);
    auto found = find_tensor(*target->model, source.file, source.from_tensor.value_or(name));
    RETURN_IF_ERROR(found);
    const Tensor tensor = target->model->tensors()[*found];
    if (!form.dtype) form.dtype = tensor.dtype;
    if (!form.shape) form.shape.emplace(tensor.shape.begin(), tensor.shape.end());
    return form;
  }
  if (source.file == "-") return refuse_form("standard input tells no size: give --dtype and --shape");
  auto file = system_storage().open_behind(source.file, Links::Trusted);
  RETURN_IF_ERROR(file);
  auto size_bytes = (*file)->size_bytes();
  RETURN_IF_ERROR(size_bytes);
  if (is_npy) {
    std::vector<std::byte> start(static_cast<std::size_t>(std::min(*size_bytes, kNpyStartBytes)));
    RETURN_IF_ERROR((*file)->read(start, 0));
    auto header = parse_npy_header(start);
    if (!header) return tl::unexpected(std::move(header).error().within(source.file));
    if (!form.dtype) form.dtype = dtype_of(*header);
    if (!form.dtype) {
      return refuse_form(
          fmt::format("{}: no dtype is meant by {} alone: give --dtype", source.file, header->type_text()));
    }
    if (!form.shape) form.shape = std::move(header->shape);
    return form;
  }
  if (!form.dtype) return refuse_form(source.file + ": raw bytes tell no dtype: give --dtype, and --shape");
  const std::uint64_t bits = bits_of(*form.dtype);
  if (*size_bytes * 8 % bits != 0) {
    return refuse_form(fmt::format("{}: has {} bytes, which is no whole number of {}", source.file,
                                   *size_bytes, name_of(*form.dtype)));
  }
  form.shape = {*size_bytes * 8 / bits};
  return form;
}

}  // namespace stfs::tools
