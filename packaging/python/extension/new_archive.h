// New archives out of arrays, in files and as bytes.
#pragma once

#include "packaging/python/extension/python.h"

namespace stfs::python {

/// save(path, tensors, metadata, options, progress): writes an archive in one step. Returns None, or the
/// errno and the message of a failure. An exception of `progress` or of a signal's handler is passed on, and
/// the path is then as before.
/// tensors: a list of (name, dtype, shape, data). metadata: a list of (key, value), or None for none.
/// options: (alignment, slack_bytes, mode, is_new, is_process_durable).
PyObject* save_archive(PyObject* module, PyObject* arguments);

/// serialize(tensors, metadata): the bytes of such an archive.
PyObject* serialize_archive(PyObject* module, PyObject* arguments);

}  // namespace stfs::python
