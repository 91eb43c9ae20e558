// The type _stfs.Lease: tensors of another process. What Python can do itself is in stfs/_lease.py.
#pragma once

#include "packaging/python/extension/python.h"
#include "tools/libstfs/stfs.h"

namespace stfs::python {

/// Puts the type into the module.
bool add_lease_type(PyObject* module);

/// attach(socket, seconds).
PyObject* attach(PyObject*, PyObject* arguments);

}  // namespace stfs::python
