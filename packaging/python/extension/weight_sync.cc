// Turns events of a pull into calls of Python.
#include "packaging/python/extension/weight_sync.h"

#include "packaging/python/extension/call_progress.h"
#include "packaging/python/extension/python_error.h"

namespace stfs::python {
namespace {

/// The functions that the user gave, or None.
struct Functions {
  PyObject* on_event = nullptr;
  PyObject* progress = nullptr;
};

int call_for_progress(void* context, std::uint64_t done_bytes, std::uint64_t total_bytes) {
  return call_progress(static_cast<const Functions*>(context)->progress, done_bytes, total_bytes);
}

/// Runs on the thread that pulls.
int call_for_event(void* context, const stfs_pull_event* event) {
  const PyGILState_STATE state = PyGILState_Ensure();
  int failed = PyErr_CheckSignals();
  PyObject* const function = static_cast<const Functions*>(context)->on_event;
  if (failed == 0 && function != Py_None) {
    const Object version(text_of(event->version));
    const Object why(text_of(event->why, "replace"));
    const Object changed(
        list_of(event->changed_count, [&](std::uint64_t at) { return text_of(event->changed[at]); }));
    const Object result(version && why && changed
                            ? PyObject_CallFunction(function, "iOOOK", static_cast<int>(event->kind),
                                                    version.get(), why.get(), changed.get(),
                                                    static_cast<unsigned long long>(event->changed_bytes))
                            : nullptr);
    failed = result ? 0 : -1;
  }
  PyGILState_Release(state);
  return failed;
}

}  // namespace

PyObject* pull(PyObject*, PyObject* arguments) {
  PyObject* model_path = nullptr;
  PyObject* published_path = nullptr;
  PyObject* target = nullptr;
  Functions functions;
  auto options = empty<stfs_pull_options>();
  int is_process_durable = 0;
  int wait_s = 0;
  if (PyArg_ParseTuple(arguments, "O&O&OIpiOO:pull", PyUnicode_FSConverter, &model_path,
                       PyUnicode_FSConverter, &published_path, &target, &options.threads, &is_process_durable,
                       &wait_s, &functions.on_event, &functions.progress) == 0) {
    Py_XDECREF(model_path);
    return nullptr;
  }
  const Object model(model_path);
  const Object published(published_path);
  if (target != Py_None) {
    options.has_target = 1;
    options.target = PyLong_AsUnsignedLongLong(target);
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  options.is_process_durable = is_process_durable;
  options.wait_s = wait_s;
  options.on_event = call_for_event;
  options.progress = call_for_progress;
  options.context = &functions;
  const char* model_text = PyBytes_AsString(model.get());
  const char* published_text = PyBytes_AsString(published.get());
  std::int64_t version = -1;
  stfs_error error;
  const int failed =
      without_python([&] { return stfs_sync_pull(model_text, published_text, &options, &version, &error); });
  if (PyErr_Occurred() != nullptr) return nullptr;  // of a callback, or of a signal's handler
  if (failed != 0) return raise(error);
  if (version < 0) Py_RETURN_NONE;
  return PyLong_FromLongLong(version);
}

PyObject* publish_models(const stfs_model* before, const stfs_model* after, PyObject* arguments) {
  PyObject* published_path = nullptr;
  PyObject* base = nullptr;
  PyObject* since = nullptr;
  PyObject* progress = nullptr;
  unsigned long long version = 0;
  const char* checksum = nullptr;
  auto options = empty<stfs_publish_options>();
  if (PyArg_ParseTuple(arguments, "O&KOisIOO:publish", PyUnicode_FSConverter, &published_path, &version,
                       &base, &options.encoding, &checksum, &options.threads, &since, &progress) == 0) {
    return nullptr;
  }
  const Object published(published_path);
  options.version = version;
  options.checksum = checksum;
  if (base != Py_None) {
    options.has_base = 1;
    options.base = PyLong_AsUnsignedLongLong(base);
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  if (since != Py_None) {
    options.has_since = 1;
    options.since = PyLong_AsUnsignedLongLong(since);
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  std::uint64_t generation = 0;
  options.generation = &generation;
  options.progress = call_progress;
  options.context = progress;
  const char* text = PyBytes_AsString(published.get());
  stfs_error error;
  const int failed = without_python([&] { return stfs_sync_publish(before, after, text, &options, &error); });
  if (PyErr_Occurred() != nullptr) return nullptr;  // of progress, or of a signal's handler
  if (failed != 0) return raise(error);
  if (generation == 0) Py_RETURN_NONE;
  return PyLong_FromUnsignedLongLong(generation);
}

}  // namespace stfs::python
