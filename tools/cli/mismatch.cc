// Compares two tensors and writes the text.
#include "tools/cli/mismatch.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

std::string text_of(const Tensor& tensor) {
  return fmt::format("{} {}, {} {}", name_of(tensor.dtype), shape_text(tensor.shape), tensor.data.size_bytes,
                     tensor.data.size_bytes == 1 ? "byte" : "bytes");
}

}  // namespace

Mismatch mismatch_of(const Tensor& came, const Tensor& due) {
  Mismatch mismatch;
  if (came.dtype != due.dtype) mismatch.kinds.push_back("dtype");
  if (!std::ranges::equal(came.shape, due.shape)) mismatch.kinds.push_back("shape");
  if (came.data.size_bytes != due.data.size_bytes) mismatch.kinds.push_back("size");
  if (mismatch.kinds.empty()) return mismatch;
  mismatch.text = fmt::format("other {}: found {}; expected {}", joined(mismatch.kinds, " and "),
                              text_of(came), text_of(due));
  return mismatch;
}

}  // namespace stfs::tools
