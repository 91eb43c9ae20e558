// The type _stfs.Model: a handle of libstfs. What Python can do itself is in stfs/_model.py.
#pragma once

#include "packaging/python/extension/python.h"

namespace stfs::python {

/// Puts the type into the module.
bool add_model_type(PyObject* module);

}  // namespace stfs::python
