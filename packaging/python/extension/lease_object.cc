// The methods of _stfs.Lease.
#include "packaging/python/extension/lease_object.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "packaging/python/extension/python_error.h"
#include "packaging/python/extension/tensor_object.h"

namespace stfs::python {
namespace {

struct LeaseObject {
  PyObject_HEAD  //
      stfs_lease* handle;
};

PyTypeObject* lease_type = nullptr;  // lives as long as the process

stfs_lease* of(PyObject* object) {
  return reinterpret_cast<LeaseObject*>(object)->handle;
}

void deallocate(PyObject* self) {
  stfs_lease_close(of(self));
  free_object(self);
}

PyObject* refuse_new(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "leases come from a server: stfs.attach(socket)");
  return nullptr;
}

// Another thread may be in renew(), which waits for the server. Each call below waits for it, so the
// interpreter's lock is not held: the other threads of the program go on.

PyObject* tensors(PyObject* self, PyObject* type) {
  return list_of(without_python([&] { return stfs_lease_count(of(self)); }), [&](std::uint64_t at) {
    stfs_error error;
    stfs_tensor* handle = without_python([&] { return stfs_lease_tensor(of(self), at, &error); });
    return handle == nullptr ? raise(error) : new_tensor(type, handle);
  });
}

PyObject* sources(PyObject* self, PyObject*) {
  return list_of(without_python([&] { return stfs_lease_source_count(of(self)); }), [&](std::uint64_t at) {
    return PyUnicode_DecodeFSDefault(without_python([&] { return stfs_lease_source(of(self), at); }));
  });
}

PyObject* generation(PyObject* self, PyObject*) {
  return PyLong_FromUnsignedLongLong(without_python([&] { return stfs_lease_generation(of(self)); }));
}

PyObject* descriptor(PyObject* self, PyObject*) {
  return PyLong_FromLong(without_python([&] { return stfs_lease_descriptor(of(self)); }));
}

PyObject* take_news(PyObject* self, PyObject*) {
  auto news = empty<stfs_lease_news>();
  stfs_error error;
  if (without_python([&] { return stfs_lease_take_news(of(self), &news, &error); }) != 0) return raise(error);
  PyObject* why = message_of(news.why_stuck);
  if (why == nullptr) return nullptr;
  return Py_BuildValue("(KNN)", static_cast<unsigned long long>(news.newer_generation), why,
                       PyBool_FromLong(news.is_server_gone));
}

PyObject* version(PyObject* self, PyObject*) {
  return PyUnicode_FromString(without_python([&] { return stfs_lease_version(of(self)); }));
}

/// Returns nothing if that is no number of seconds, with ValueError.
std::optional<std::uint64_t> nanoseconds_of(double seconds) {
  if (std::isnan(seconds) || seconds < 0) {
    PyErr_SetString(PyExc_ValueError, "timeout is a number of seconds, from 0 on");
    return std::nullopt;
  }
  // 0 would mean the default, so the shortest time is a nanosecond. The longest one is ten years.
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::min(seconds, 3e8) * 1e9));
}

PyObject* wait_newer(PyObject* self, PyObject* seconds) {
  const auto patience_ns = nanoseconds_of(PyFloat_AsDouble(seconds));
  if (!patience_ns || PyErr_Occurred() != nullptr) return nullptr;
  std::uint64_t newer = 0;
  stfs_error error;
  const int code = without_python([&] { return stfs_lease_wait(of(self), *patience_ns, &newer, &error); });
  return code == 0 ? PyLong_FromUnsignedLongLong(newer) : raise(error);
}

PyObject* renew(PyObject* self, PyObject* seconds) {
  const auto patience_ns = nanoseconds_of(PyFloat_AsDouble(seconds));
  if (!patience_ns || PyErr_Occurred() != nullptr) return nullptr;
  stfs_error error;
  const int code = without_python([&] { return stfs_lease_renew(of(self), *patience_ns, &error); });
  if (code != 0) return raise(error);
  return list_of(without_python([&] { return stfs_lease_changed_count(of(self)); }), [&](std::uint64_t at) {
    return PyLong_FromUnsignedLongLong(without_python([&] { return stfs_lease_changed(of(self), at); }));
  });
}

PyMethodDef kMethods[] = {
    {"tensors", as_method(tensors), METH_O, "tensors(type)\n--\n\n"},
    {"sources", as_method(sources), METH_NOARGS, "sources()\n--\n\n"},
    {"generation", as_method(generation), METH_NOARGS, "generation()\n--\n\n"},
    {"version", as_method(version), METH_NOARGS, "version()\n--\n\n"},
    {"wait", as_method(wait_newer), METH_O,
     "wait(seconds)\n--\n\nReturns the number of a newer generation, or 0."},
    {"renew", as_method(renew), METH_O,
     "renew(seconds)\n--\n\nReturns the positions of the tensors that differ from the generation before."},
    {"descriptor", as_method(descriptor), METH_NOARGS, "descriptor()\n--\n\n"},
    {"take_news", as_method(take_news), METH_NOARGS,
     "take_news()\n--\n\nReturns (newer generation or 0, why stuck or '', whether the server has ended)."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot kSlots[] = {{Py_tp_new, as_slot(refuse_new)},
                        {Py_tp_dealloc, as_slot(deallocate)},
                        {Py_tp_methods, kMethods},
                        {Py_tp_doc, const_cast<char*>("A lease of libstfs.")},
                        {0, nullptr}};

PyType_Spec kSpec = {"stfs._stfs.Lease", sizeof(LeaseObject), 0, static_cast<unsigned>(Py_TPFLAGS_DEFAULT),
                     kSlots};

}  // namespace

bool add_lease_type(PyObject* module) {
  lease_type = add_type(module, kSpec);
  return lease_type != nullptr;
}

PyObject* attach(PyObject*, PyObject* arguments) {
  PyObject* path = nullptr;
  double seconds = 0;
  if (PyArg_ParseTuple(arguments, "O&d:attach", PyUnicode_FSConverter, &path, &seconds) == 0) return nullptr;
  const Object socket(path);
  const auto patience_ns = nanoseconds_of(seconds);
  if (!patience_ns) return nullptr;
  auto options = empty<stfs_lease_options>();
  options.patience_ns = *patience_ns;
  const char* text = PyBytes_AsString(socket.get());
  Object self(PyType_GenericAlloc(lease_type, 0));
  if (!self) return nullptr;
  stfs_error error;
  stfs_lease* handle = without_python([&] { return stfs_lease_attach(text, &options, &error); });
  if (handle == nullptr) return raise(error);
  reinterpret_cast<LeaseObject*>(self.get())->handle = handle;
  return self.release();
}

}  // namespace stfs::python
