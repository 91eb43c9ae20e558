// Reads arguments of Python that describe tensors: names, dtypes and shapes.
#pragma once

#include <cstdint>
#include <vector>

#include "packaging/python/extension/python.h"

namespace stfs::python {

/// The bytes of a str. Converts to false, with an exception, if the object is not a str.
class Text {
 public:
  explicit Text(PyObject* text);
  explicit operator bool() const { return text_.data != nullptr; }
  [[nodiscard]] stfs_text text() const { return text_; }

 private:
  Object bytes_;
  stfs_text text_{};
};

/// Returns -1 with ValueError if the text means no dtype (stfs_dtype_named()).
std::int32_t dtype_named(const char* name);

/// Reads a tuple of integers. Returns false with an exception.
bool take_shape(PyObject* tuple, std::vector<std::uint64_t>& shape);

}  // namespace stfs::python
