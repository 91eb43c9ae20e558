// The type _stfs.Upload: a plan that is carried out. stfs/_upload.py has the parts that are written in
// Python.
#pragma once

#include "packaging/python/extension/python.h"

namespace stfs::python {

/// Puts the type into the module. Returns false with an exception on failure.
bool add_upload_type(PyObject* module);

/// Makes a plan and starts an upload.
/// @param arguments  devices, rules, patterns, dtype, must_cast, readers and must_verify. `patterns` is a
///                   list of str, or None. The other texts are a str or None.
PyObject* start_upload(const stfs_model* model, PyObject* arguments);

/// devices(): returns ([(name, uuid, description, total bytes, free bytes, problem)], why there is no GPU).
PyObject* list_devices(PyObject*, PyObject*);

}  // namespace stfs::python
