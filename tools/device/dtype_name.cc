// Compares names of dtypes without regard to case.
#include "tools/device/dtype_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "tools/device/conversion.h"
#include "tools/text/printable.h"

namespace stfs::upload {

Result<Dtype> conversion_target_named(std::string_view name) {
  std::string upper(name);
  std::ranges::transform(upper, upper.begin(),
                         [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  const auto dtype = dtype_named(upper);
  if (!dtype || !is_conversion_target(*dtype)) return refuse_conversion_target(name);
  return *dtype;
}

tl::unexpected<Error> refuse_conversion_target(std::string_view name) {
  std::string targets;
  for (const Dtype dtype : all_dtypes()) {
    if (is_conversion_target(dtype))
      targets += fmt::format("{}{}", targets.empty() ? "" : ", ", name_of(dtype));
  }
  return fail(ErrorCode::InvalidArgument, EINVAL,
              fmt::format("{}: is not a dtype to convert to: choose one of {}", tools::printable_name(name),
                          targets));
}

}  // namespace stfs::upload
