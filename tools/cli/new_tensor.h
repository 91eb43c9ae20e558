// The dtype and shape of a tensor as the command line gives them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/format/dtype.h"
#include "tools/cli/tensor_source.h"

namespace stfs::tools {

struct TensorForm {
  std::optional<Dtype> dtype;
  std::optional<std::vector<std::uint64_t>> shape;
};

/// The names of all dtypes, for completions.
std::vector<std::string> all_dtype_names();

/// Parses "BF16", in any case, and "4096,4096", "[4096,4096]", "[]". Empty texts give nothing.
/// InvalidArgument: another text.
Result<TensorForm> parse_form(const std::string& dtype, const std::string& shape);

/// Completes the form with data from the file of a new tensor: a NumPy file has dtype and shape, an archive
/// has the dtype and shape of the tensor, and raw bytes give the number of elements in one dimension.
/// @param name  of the new tensor.
/// @return InvalidArgument: the form is not complete, and the message describes how to complete it.
Result<TensorForm> complete_form(TensorForm form, const SourceName& source, const std::string& name);

}  // namespace stfs::tools
