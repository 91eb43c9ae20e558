// The type _stfs.Edit: changes of a model that are committed as one. stfs/_transaction.py has the parts that
// are written in Python.
#pragma once

#include "packaging/python/extension/python.h"

namespace stfs::python {

/// Puts the type into the module. Returns false with an exception on failure.
bool add_edit_type(PyObject* module);

/// dtype_named(text): the archive's name of the dtype that a text means; ValueError if it means none.
PyObject* dtype_of_text(PyObject* module, PyObject* text);

/// Begins an edit. Waits for the disk without the interpreter's lock.
/// @return null with an exception.
PyObject* begin_edit(stfs_model* model);

}  // namespace stfs::python
