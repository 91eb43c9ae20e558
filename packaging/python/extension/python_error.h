// Raises errors of libstfs as Python's exceptions.
#pragma once

#include "packaging/python/extension/python.h"

namespace stfs::python {

/// Makes stfs.FormatError, and puts it into the module.
/// @return false with an exception on failure.
bool add_format_error(PyObject* module);

/// Raises FormatError for a file that is not an archive, ValueError for a wrong argument, MemoryError, or
/// else the OSError of errno_value (FileNotFoundError, PermissionError, ...).
/// @return null, so that the caller can return it.
PyObject* raise(const stfs_error& error);

}  // namespace stfs::python
