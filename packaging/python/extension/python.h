// Includes Python.h for every file here, and converts between values of Python and of libstfs.
//
// From 3.11 on the buffer protocol is a part of the stable ABI, so one build of the module serves all later
// versions. 3.10 needs a separate build from the same sources.
#pragma once

#if STFS_PYTHON_STABLE_ABI
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <cstring>
#include <memory>

#include "tools/libstfs/stfs.h"

namespace stfs::python {

struct Unreference {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
/// An owned reference.
using Object = std::unique_ptr<PyObject, Unreference>;

/// Runs `work` without the interpreter's lock, and returns its result. Other threads run Python at the same
/// time, so `work` must not touch an object of Python, and must not throw.
template <class Work>
auto without_python(Work&& work) {
  PyThreadState* const state = PyEval_SaveThread();
  auto result = work();
  PyEval_RestoreThread(state);
  return result;
}

/// Returns an empty structure of stfs.h that has its size.
template <class Struct>
Struct empty() {
  Struct known{};
  known.struct_bytes = sizeof known;
  return known;
}

/// Returns a str, or null with an exception.
/// @param errors  what to do with bytes that are not valid UTF-8. The default keeps surrogates, which a name
///                in an archive may have.
inline PyObject* text_of(stfs_text text, const char* errors = "surrogatepass") {
  return PyUnicode_DecodeUTF8(text.data, static_cast<Py_ssize_t>(text.size_bytes), errors);
}
/// Returns a str of a message of libstfs. A message may quote a path that is not valid UTF-8.
inline PyObject* message_of(const char* text) {
  return text_of({text, std::strlen(text)}, "replace");
}

/// Returns a list of the new references that `make(0)` to `make(count - 1)` return, or null with the
/// exception of the call that failed.
template <class Make>
PyObject* list_of(std::uint64_t count, Make&& make) {
  Object list(PyList_New(0));
  for (std::uint64_t at = 0; list && at < count; ++at) {
    const Object item(make(at));
    if (!item || PyList_Append(list.get(), item.get()) != 0) return nullptr;
  }
  return list.release();
}

/// Makes a type, and puts it into the module under the last part of its name.
/// @return the type, which lives as long as the process; null with an exception.
inline PyTypeObject* add_type(PyObject* module, PyType_Spec& spec) {
  Object type(PyType_FromSpec(&spec));
  const char* name = std::strrchr(spec.name, '.') + 1;
  if (!type || PyModule_AddObjectRef(module, name, type.get()) != 0) return nullptr;
  return reinterpret_cast<PyTypeObject*>(type.release());
}

/// Ends the Py_tp_dealloc of a type of add_type(): frees the object itself.
inline void free_object(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

/// Returns a function in the one type that the tables of Python have for all functions.
template <class Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}
template <class Function>
void* as_slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace stfs::python
