// Chooses the exception for each code.
#include "packaging/python/extension/python_error.h"

#include <cerrno>
#include <utility>

namespace stfs::python {
namespace {

PyObject* format_error = nullptr;  // lives as long as the process

/// @param arguments  of the exception; null if an exception was raised when they were made.
PyObject* raise_with(PyObject* type, Object arguments) {
  if (arguments) PyErr_SetObject(type, arguments.get());
  return nullptr;
}

}  // namespace

bool add_format_error(PyObject* module) {
  format_error = PyErr_NewExceptionWithDoc(
      "stfs.FormatError",
      "The file is not a valid .safetensors archive, or the index is not a valid index.\n\n"
      "The message gives the file, the failed check by its name in the reference library, and the reason.",
      PyExc_ValueError, nullptr);
  if (format_error == nullptr) return false;
  Py_INCREF(format_error);
  if (PyModule_AddObject(module, "FormatError", format_error) == 0) return true;
  Py_DECREF(format_error);
  return false;
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

}  // namespace stfs::python
