// The type _stfs.Upload: a plan that is being carried out. What Python can do itself is in stfs/_upload.py.
#pragma once

#include "packaging/python/extension/python.h"
#include "tools/libstfs/stfs.h"

namespace stfs::python {

/// Puts the type into the module.
bool add_upload_type(PyObject* module);

/// Plans and starts.
/// @param arguments  devices, rules, patterns (a list of str or None), dtype, readers, must_verify; str or
/// None each.
PyObject* start_upload(const stfs_model* model, PyObject* arguments);

/// devices(): ([(name, uuid, description, total bytes, free bytes)], why there is no GPU).
PyObject* list_devices(PyObject*, PyObject*);

}  // namespace stfs::python
