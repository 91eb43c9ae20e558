// Weight sync: versions of weights are pulled and published. stfs/_sync.py makes objects of the tuples.
#pragma once

#include "packaging/python/extension/python.h"

namespace stfs::python {

/// pull(model, published, to, threads, process, wait, on_event, progress) without the interpreter's lock.
/// Calls on_event with (kind, version, why, [changed names], changed bytes) after each event, and progress as
/// call_progress.h does; an exception of one of them ends the pull.
/// @return the version of the model, or None.
PyObject* pull(PyObject* module, PyObject* arguments);

/// Publishes the changes from one model to another as a version.
/// @param arguments  (published, version, base or None, encoding, checksum, threads, since, progress).
PyObject* publish_models(const stfs_model* before, const stfs_model* after, PyObject* arguments);

}  // namespace stfs::python
