// Tells a function of Python how far a call of libstfs is, and lets Ctrl-C end the call.
#pragma once

#include <cstdint>

#include "packaging/python/extension/python.h"

namespace stfs::python {

/// The `progress` of an options structure. Takes the interpreter's lock; for the thread that called libstfs.
/// @param context  a function of the user, called with (done bytes, total bytes), or None: a PyObject*.
/// @return not 0 with an exception: of the function, or of a signal's handler.
int call_progress(void* context, std::uint64_t done_bytes, std::uint64_t total_bytes);

}  // namespace stfs::python
