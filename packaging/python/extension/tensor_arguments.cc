#include "packaging/python/extension/tensor_arguments.h"

namespace stfs::python {

Text::Text(PyObject* text) {
  if (PyUnicode_Check(text) == 0) {
    PyErr_SetString(PyExc_TypeError, "names, keys and values are str");
    return;
  }
  bytes_.reset(PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass"));
  Py_ssize_t size_bytes = 0;
  char* data = nullptr;
  if (bytes_ && PyBytes_AsStringAndSize(bytes_.get(), &data, &size_bytes) == 0) {
    text_ = {data, static_cast<std::size_t>(size_bytes)};
  }
}

std::int32_t dtype_named(const char* name) {
  const std::int32_t dtype = stfs_dtype_named(name);
  if (dtype >= 0) return dtype;
  PyErr_Format(PyExc_ValueError, "dtype %s: is not a dtype such as BF16, F8_E4M3 or U8", name);
  return -1;
}

bool take_shape(PyObject* tuple, std::vector<std::uint64_t>& shape) {
  for (Py_ssize_t at = 0; at < PyTuple_Size(tuple); ++at) {
    const unsigned long long size = PyLong_AsUnsignedLongLong(PyTuple_GetItem(tuple, at));
    if (PyErr_Occurred() != nullptr) return false;
    shape.push_back(size);
  }
  return true;
}

}  // namespace stfs::python
