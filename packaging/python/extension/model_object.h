// The type _stfs.Model: a handle of libstfs. stfs/_model.py has the parts that are written in Python.
#pragma once

#include "packaging/python/extension/python.h"

namespace stfs::python {

/// Puts the type into the module. Returns false with an exception on failure.
bool add_model_type(PyObject* module);

}  // namespace stfs::python
