#include "packaging/python/extension/call_progress.h"

namespace stfs::python {

int call_progress(void* context, std::uint64_t done_bytes, std::uint64_t total_bytes) {
  const PyGILState_STATE state = PyGILState_Ensure();
  int failed = PyErr_CheckSignals();
  auto* const function = static_cast<PyObject*>(context);
  if (failed == 0 && function != Py_None) {
    const Object result(PyObject_CallFunction(function, "KK", static_cast<unsigned long long>(done_bytes),
                                              static_cast<unsigned long long>(total_bytes)));
    failed = result ? 0 : -1;
  }
  PyGILState_Release(state);
  return failed;
}

}  // namespace stfs::python
