// Chooses the exception for each code.
#include "packaging/python/extension/python_error.h"

#include <cerrno>
#include <utility>

namespace stfs::python {
namespace {

// Both live as long as the process.
PyObject* safetensor_error = nullptr;
PyObject* format_error = nullptr;

/// @param arguments  of the exception; null if an exception was raised when they were made.
PyObject* raise_with(PyObject* type, Object arguments) {
  if (arguments) PyErr_SetObject(type, arguments.get());
  return nullptr;
}

}  // namespace

bool add_errors(PyObject* module) {
  safetensor_error = PyErr_NewExceptionWithDoc(
      "stfs.SafetensorError",
      "The exception of the functions that replace those of the package safetensors.\n\n"
      "FormatError is one.",
      nullptr, nullptr);
  if (safetensor_error == nullptr || PyModule_AddObjectRef(module, "SafetensorError", safetensor_error) != 0)
    return false;
  const Object bases(PyTuple_Pack(2, safetensor_error, PyExc_ValueError));
  if (!bases) return false;
  format_error = PyErr_NewExceptionWithDoc(
      "stfs.FormatError",
      "The file is not a valid .safetensors archive, or the index is not a valid index.\n\n"
      "The message gives the file, the failed check by its name in the reference library, and the reason.",
      bases.get(), nullptr);
  return format_error != nullptr && PyModule_AddObjectRef(module, "FormatError", format_error) == 0;
}

PyObject* raise(const stfs_error& error) {
  Object message(message_of(error.message));
  if (!message) return nullptr;
  if (error.code == STFS_OUT_OF_MEMORY) return raise_with(PyExc_MemoryError, std::move(message));
  if (error.code >= STFS_HEADER_TOO_SMALL && error.code <= STFS_DUPLICATE_KEY) {
    return raise_with(format_error,
                      Object(PyUnicode_FromFormat("%U (%s)", message.get(), stfs_code_name(error.code))));
  }
  if (error.code == STFS_INVALID_ARGUMENT && error.errno_value == EINVAL) {
    return raise_with(PyExc_ValueError, std::move(message));
  }
  return raise_with(PyExc_OSError, Object(Py_BuildValue("(iO)", error.errno_value, message.get())));
}

PyObject* raise_safetensor_error(const stfs_error& error) {
  if (error.code == STFS_OUT_OF_MEMORY) return raise(error);
  return raise_with(safetensor_error, Object(message_of(error.message)));
}

}  // namespace stfs::python
