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

/// Parses "BF16", in any case, and "4096,4096", "[4096,4096]", "[]". Empty texts give nothing.
/// InvalidArgument: another text.
Result<TensorForm> parse_form(const std::string& dtype, const std::string& shape);

/// Completes the form by what the file of a new tensor tells: a NumPy file its dtype and shape, an archive
/// those of the tensor, raw bytes the number of elements in one dimension.
/// @param name  of the new tensor.
/// @return InvalidArgument: the form is not complete, and the message says how to give it.
Result<TensorForm> complete_form(TensorForm form, const SourceName& source, const std::string& name);

}  // namespace stfs::tools
