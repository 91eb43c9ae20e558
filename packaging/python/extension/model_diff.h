// The comparison of two models, as lists of tuples. stfs/_diff.py makes objects of them.
#pragma once

#include "packaging/python/extension/python.h"

namespace stfs::python {

/// Compares without the interpreter's lock. Ctrl-C ends the comparison.
/// @param patterns  a list of str, or None.
/// @param progress  a function (call_progress.h), or None. An exception of it ends the comparison.
/// @return (number of compared tensors, [(name, kinds, dtype a, shape a, dtype b, shape b, statistics)],
///   [(key, value a, value b)]), or null with an exception. `statistics` is None or a tuple in the order of
///   stfs_difference.
PyObject* compare_models(const stfs_model* a, const stfs_model* b, PyObject* patterns, unsigned int threads,
                         int is_brief, PyObject* progress);

}  // namespace stfs::python
