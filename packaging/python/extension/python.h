// Python.h as every file here includes it.
//
// From 3.11 on, where the buffer protocol became a part of the stable ABI, one build of the module serves all
// later versions; 3.10 needs one of its own, from the same sources.
#pragma once

#if STFS_PYTHON_STABLE_ABI
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>

namespace stfs::python {

struct Unreference {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};
/// An owned reference.
using Object = std::unique_ptr<PyObject, Unreference>;

/// Other threads run Python while it lives: nothing of Python may be touched.
class WithoutPython {
 public:
  WithoutPython() : state_(PyEval_SaveThread()) {}
  WithoutPython(const WithoutPython&) = delete;
  WithoutPython& operator=(const WithoutPython&) = delete;
  ~WithoutPython() { PyEval_RestoreThread(state_); }

 private:
  PyThreadState* state_;
};

/// A function for a table of Python's, which wants them all under one type.
template <class Function>
PyCFunction as_method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}
template <class Function>
void* as_slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace stfs::python
