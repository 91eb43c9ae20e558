#include "fs/model/tensor_forms.h"

#include <fmt/format.h>

#include <utility>

#include "core/base/utf8.h"
#include "core/format/dtype_text.h"
#include "core/format/json_string.h"

namespace stfs {
namespace {

tl::unexpected<Error> wrong(std::string why) {
  return fail(ErrorCode::InvalidArgument, EINVAL, std::move(why));
}

/// Returns the shape that the same bytes have with another dtype. Only the last dimension changes, as in
/// NumPy's view(). Returns nothing if the bytes don't fit.
std::optional<std::vector<std::uint64_t>> shape_as(const NewTensor::Form& now, Dtype dtype) {
  std::vector<std::uint64_t> shape = now.shape;
  const std::uint64_t before = bits_of(now.dtype);
  const std::uint64_t after = bits_of(dtype);
  if (before == after) return shape;
  if (shape.empty()) return std::nullopt;
  std::uint64_t last_bits = 0;  // beside a dimension of 0 the last one may have any size
  if (__builtin_mul_overflow(shape.back(), before, &last_bits) || last_bits % after != 0) return std::nullopt;
  shape.back() = last_bits / after;
  return shape;
}

}  // namespace

Result<Dtype> dtype_of_text(const std::string& text) {
  if (const auto dtype = parse_dtype(text)) return *dtype;
  return wrong(fmt::format("{} is no dtype such as BF16 or U8", in_quotes(text)));
}

Result<std::vector<std::uint64_t>> shape_of_attribute(const std::string& text) {
  auto shape = shape_of_text(text);
  if (shape) return std::move(*shape);
  return wrong(fmt::format("{} is no shape such as [4,16]", in_quotes(text)));
}

Result<void> check_metadata(std::string_view key, const std::optional<std::string>& value) {
  if (is_utf8(key) && (!value || is_utf8(*value))) return {};
  return wrong(fmt::format("metadata {}: key and value must be UTF-8", in_quotes(key)));
}

Result<NewTensor::Form> retyped(std::string_view name, NewTensor::Form now, std::string_view key,
                                const std::string& value) {
  if (key == "dtype") {
    const auto wanted = dtype_of_text(value);
    RETURN_IF_ERROR(wanted);
    auto fitting = shape_as(now, *wanted);
    if (!fitting) {
      return wrong(
          fmt::format("tensor {}: {} {} has no shape as {} that only differs in its last "
                      "dimension: set the shape first",
                      in_quotes(name), name_of(now.dtype), shape_text(now.shape), value));
    }
    now.dtype = *wanted;
    now.shape = std::move(*fitting);
  } else {
    auto wanted = shape_of_attribute(value);
    RETURN_IF_ERROR(wanted);
    now.shape = std::move(*wanted);
  }
  return now;
}

Result<void> set_form(const PendingFile& content, std::string_view key, const std::string& value) {
  NewTensor* const made = content.new_tensor();
  if (made == nullptr) return fail(ErrorCode::InvalidArgument, EPERM, "a checkpoint has no dtype");
  if (key == "dtype") {
    auto dtype = dtype_of_text(value);
    RETURN_IF_ERROR(dtype);
    made->set_dtype(*dtype);
  } else {
    auto shape = shape_of_attribute(value);
    RETURN_IF_ERROR(shape);
    made->set_shape(std::move(*shape));
  }
  return {};
}

}  // namespace stfs
