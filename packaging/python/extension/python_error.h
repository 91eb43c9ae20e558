// Errors of libstfs as Python's exceptions.
#pragma once

#include "packaging/python/extension/python.h"
#include "tools/libstfs/stfs.h"

namespace stfs::python {

/// Makes stfs.FormatError and puts it into the module.
bool add_format_error(PyObject* module);

/// Raises what a Python programmer expects: KeyError for a tensor that is not there, FormatError for a file
/// that is no archive, ValueError, MemoryError, or the OSError of errno_value (FileNotFoundError,
/// PermissionError, ...).
/// @return null, to be returned.
PyObject* raise(const stfs_error& error);

}  // namespace stfs::python
