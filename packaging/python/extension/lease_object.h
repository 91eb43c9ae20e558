// The type _stfs.Lease: tensors of another process. stfs/_lease.py has the parts that are written in Python.
#pragma once

#include "packaging/python/extension/python.h"

namespace stfs::python {

/// Puts the type into the module. Returns false with an exception on failure.
bool add_lease_type(PyObject* module);

/// attach(socket, seconds).
PyObject* attach(PyObject*, PyObject* arguments);

}  // namespace stfs::python
