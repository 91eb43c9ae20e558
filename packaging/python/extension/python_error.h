// Raises errors of libstfs as Python's exceptions.
#pragma once

#include "packaging/python/extension/python.h"

namespace stfs::python {

/// Makes stfs.SafetensorError and stfs.FormatError, and puts them into the module.
/// @return false with an exception on failure.
bool add_errors(PyObject* module);

/// Raises FormatError for a file that is not an archive, ValueError for a wrong argument, MemoryError, or
/// else the OSError of errno_value (FileNotFoundError, PermissionError, ...).
/// @return null, so that the caller can return it.
PyObject* raise(const stfs_error& error);

/// Raises SafetensorError for tensors that no archive can have, or MemoryError.
/// @return null.
PyObject* raise_safetensor_error(const stfs_error& error);

}  // namespace stfs::python
