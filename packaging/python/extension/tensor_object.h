// The type _stfs.Tensor: a handle of libstfs with the buffer protocol and DLPack. What Python can do itself
// (slices, arrays, words for a person) is in stfs/_tensor.py.
#pragma once

#include "packaging/python/extension/python.h"
#include "tools/libstfs/stfs.h"

namespace stfs::python {

/// Puts the type into the module.
bool add_tensor_type(PyObject* module);

/// A tensor of that type, which must be a subtype of _stfs.Tensor.
/// @param handle  taken over, also where it fails.
PyObject* new_tensor(PyObject* type, stfs_tensor* handle);

}  // namespace stfs::python
