// The type _stfs.Tensor: a handle of libstfs with the buffer protocol and DLPack. stfs/_tensor.py has the
// parts that are written in Python: slices, arrays, texts for people.
#pragma once

#include "packaging/python/extension/python.h"

namespace stfs::python {

/// Puts the type into the module. Returns false with an exception on failure.
bool add_tensor_type(PyObject* module);

/// Returns a tensor, or null with an exception.
/// @param type    a subtype of _stfs.Tensor.
/// @param handle  this call owns it, even if the call fails.
PyObject* new_tensor(PyObject* type, stfs_tensor* handle);

}  // namespace stfs::python
