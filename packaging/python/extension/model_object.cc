// The methods of _stfs.Model.
#include "packaging/python/extension/model_object.h"

#include <utility>
#include <vector>

#include "packaging/python/extension/edit_object.h"
#include "packaging/python/extension/model_diff.h"
#include "packaging/python/extension/python_error.h"
#include "packaging/python/extension/tensor_object.h"
#include "packaging/python/extension/upload_object.h"
#include "packaging/python/extension/weight_sync.h"

namespace stfs::python {
namespace {

// Guarded by the interpreter's lock, like every object of Python.
struct ModelObject {
  PyObject_HEAD  //
      stfs_model* handle;
  Py_ssize_t use_count;  // by threads that do not hold the interpreter's lock
  bool is_closed;
  bool is_writable;
};

ModelObject& of(PyObject* object) {
  return *reinterpret_cast<ModelObject*>(object);
}

/// Keeps the handle open. A close() on another thread takes effect when the last Use is destroyed.
class Use {
 public:
  explicit Use(PyObject* self) : self_(of(self)) {
    if (self_.is_closed) {
      PyErr_SetString(PyExc_ValueError, "the model is closed");
    } else {
      ++self_.use_count;
      is_open_ = true;
    }
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() {
    if (is_open_ && --self_.use_count == 0 && self_.is_closed)
      stfs_model_close(std::exchange(self_.handle, nullptr));
  }

  /// Returns false, with ValueError, if the model is closed.
  explicit operator bool() const { return is_open_; }
  [[nodiscard]] stfs_model* handle() const { return self_.handle; }

 private:
  ModelObject& self_;
  bool is_open_ = false;
};

/// The model as it is now. On a model that another thread edits, positions and names change at any moment.
class Snapshot {
 public:
  explicit Snapshot(PyObject* self) : use_(self) {
    if (!use_) return;
    model_ = use_.handle();
    if (!of(self).is_writable) return;
    stfs_error error;
    // This waits for a commit of another thread.
    model_ = taken_ = without_python([&] { return stfs_model_snapshot(use_.handle(), &error); });
    if (taken_ == nullptr) raise(error);
  }
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;
  ~Snapshot() { stfs_model_close(taken_); }

  /// Returns false, with an exception, if the model is closed or not there.
  explicit operator bool() const { return model_ != nullptr; }
  [[nodiscard]] stfs_model* handle() const { return model_; }

 private:
  Use use_;
  stfs_model* model_ = nullptr;
  stfs_model* taken_ = nullptr;
};

/// Paths as C has them.
class Paths {
 public:
  /// Returns false with an exception if it is no sequence of paths.
  bool take(PyObject* paths) {
    const Py_ssize_t count = PyList_Size(paths);
    for (Py_ssize_t at = 0; at < count; ++at) {
      PyObject* bytes = nullptr;
      if (PyUnicode_FSConverter(PyList_GetItem(paths, at), &bytes) == 0) return false;
      owned_.emplace_back(bytes);
      texts_.push_back(PyBytes_AsString(bytes));
    }
    return count >= 0;
  }
  [[nodiscard]] const std::vector<const char*>& texts() const { return texts_; }

 private:
  std::vector<Object> owned_;
  std::vector<const char*> texts_;
};

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"path", "io", "strict", "writable", "deltas", nullptr};
  PyObject* path = nullptr;
  auto options = empty<stfs_model_options>();
  int is_strict = 0;
  int is_writable = 0;
  PyObject* delta_list = nullptr;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "O&|ippO!:Model", const_cast<char**>(names),
                                  PyUnicode_FSConverter, &path, &options.io, &is_strict, &is_writable,
                                  &PyList_Type, &delta_list) == 0) {
    return nullptr;
  }
  const Object owned_path(path);
  options.is_strict = is_strict;
  options.is_writable = is_writable;
  Paths deltas;
  try {
    if (delta_list != nullptr && !deltas.take(delta_list)) return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  options.deltas = deltas.texts().data();
  options.delta_count = deltas.texts().size();
  options.is_forgiving = 1;  // PyTorch writes to memory that is marked as read-only
  const char* path_bytes = PyBytes_AsString(path);
  stfs_error error;
  stfs_model* handle = without_python([&] { return stfs_model_open(path_bytes, &options, &error); });
  if (handle == nullptr) return raise(error);
  PyObject* self = PyType_GenericAlloc(type, 0);
  if (self == nullptr) {
    stfs_model_close(handle);
    return nullptr;
  }
  of(self).handle = handle;
  of(self).is_writable = is_writable != 0;
  return self;
}

void deallocate(PyObject* self) {
  stfs_model_close(of(self).handle);
  free_object(self);
}

PyObject* close(PyObject* self, PyObject*) {
  of(self).is_closed = true;
  if (of(self).use_count == 0) stfs_model_close(std::exchange(of(self).handle, nullptr));
  Py_RETURN_NONE;
}

PyObject* count(PyObject* self, PyObject*) {
  const Snapshot use(self);
  return use ? PyLong_FromUnsignedLongLong(stfs_model_tensor_count(use.handle())) : nullptr;
}

PyObject* path(PyObject* self, PyObject*) {
  const Use use(self);
  return use ? PyUnicode_DecodeFSDefault(stfs_model_path(use.handle())) : nullptr;
}

/// The bytes of a name. Converts to false, with an exception, if the name is not a str.
class Name {
 public:
  explicit Name(PyObject* name) : text_(PyUnicode_AsEncodedString(name, "utf-8", "surrogatepass")) {
    if (text_) PyBytes_AsStringAndSize(text_.get(), &bytes_, &size_bytes_);
  }
  explicit operator bool() const { return bytes_ != nullptr; }
  int find(const stfs_model* model, std::uint64_t& position, stfs_error* error) const {
    return stfs_model_find(model, bytes_, static_cast<std::size_t>(size_bytes_), &position, error);
  }

 private:
  Object text_;
  char* bytes_ = nullptr;
  Py_ssize_t size_bytes_ = 0;
};

/// Raises KeyError if there is no tensor of that name.
bool find(const stfs_model* model, PyObject* key, std::uint64_t& position) {
  if (PyUnicode_Check(key) == 0) {
    PyErr_SetObject(PyExc_KeyError, key);
    return false;
  }
  const Name name(key);
  if (!name) return false;
  stfs_error error;
  if (name.find(model, position, &error) == 0) return true;
  if (error.code != STFS_NOT_FOUND) {
    raise(error);
    return false;
  }
  const Object message(message_of(error.message));
  if (message) PyErr_SetObject(PyExc_KeyError, message.get());
  return false;
}

PyObject* contains(PyObject* self, PyObject* key) {
  const Snapshot use(self);
  if (!use) return nullptr;
  if (PyUnicode_Check(key) == 0) Py_RETURN_FALSE;
  const Name name(key);
  if (!name) return nullptr;
  std::uint64_t position = 0;
  return PyBool_FromLong(name.find(use.handle(), position, nullptr) == 0 ? 1 : 0);
}

PyObject* names(PyObject* self, PyObject*) {
  const Snapshot use(self);
  if (!use) return nullptr;
  return list_of(stfs_model_tensor_count(use.handle()), [&](std::uint64_t at) {
    auto info = empty<stfs_tensor_info>();
    stfs_error error;
    return stfs_model_describe(use.handle(), at, &info, &error) != 0 ? raise(error) : text_of(info.name);
  });
}

PyObject* metadata(PyObject* self, PyObject*) {
  const Snapshot use(self);
  if (!use) return nullptr;
  Object pairs(PyDict_New());
  const std::uint64_t number = stfs_model_metadata_count(use.handle());
  for (std::uint64_t at = 0; pairs && at < number; ++at) {
    stfs_text key{};
    stfs_text value{};
    stfs_error error;
    if (stfs_model_metadata(use.handle(), at, &key, &value, &error) != 0) return raise(error);
    const Object its_key(text_of(key));
    const Object its_value(text_of(value));
    if (!its_key || !its_value || PyDict_SetItem(pairs.get(), its_key.get(), its_value.get()) != 0)
      return nullptr;
  }
  return pairs.release();
}

PyObject* not_shown(PyObject* self, PyObject*) {
  const Snapshot use(self);
  if (!use) return nullptr;
  return list_of(stfs_model_not_shown_count(use.handle()), [&](std::uint64_t at) {
    stfs_text why{};
    stfs_error error;
    // The reason may quote a path that is not valid UTF-8.
    return stfs_model_not_shown(use.handle(), at, &why, &error) != 0 ? raise(error) : text_of(why, "replace");
  });
}

PyObject* tensor(PyObject* self, PyObject* arguments) {
  const Snapshot use(self);
  PyObject* type = nullptr;
  PyObject* name = nullptr;
  std::uint64_t position = 0;
  if (!use || PyArg_ParseTuple(arguments, "OO:tensor", &type, &name) == 0) return nullptr;
  if (!find(use.handle(), name, position)) return nullptr;
  stfs_error error;
  stfs_tensor* handle = stfs_tensor_open(use.handle(), position, &error);
  return handle == nullptr ? raise(error) : new_tensor(type, handle);
}

PyObject* edit(PyObject* self, PyObject*) {
  const Use use(self);
  return use ? begin_edit(use.handle()) : nullptr;
}

PyObject* diff(PyObject* self, PyObject* arguments) {
  PyObject* other = nullptr;
  PyObject* patterns = nullptr;
  unsigned int threads = 0;
  int is_brief = 0;
  PyObject* progress = nullptr;
  if (PyArg_ParseTuple(arguments, "O!OIpO:diff", Py_TYPE(self), &other, &patterns, &threads, &is_brief,
                       &progress) == 0) {
    return nullptr;
  }
  const Snapshot a(self);
  if (!a) return nullptr;
  const Snapshot b(other);
  return b ? compare_models(a.handle(), b.handle(), patterns, threads, is_brief, progress) : nullptr;
}

PyObject* publish(PyObject* self, PyObject* arguments) {
  PyObject* other = nullptr;
  PyObject* chosen = nullptr;
  if (PyArg_ParseTuple(arguments, "O!O!:publish", Py_TYPE(self), &other, &PyTuple_Type, &chosen) == 0) {
    return nullptr;
  }
  const Snapshot before(self);
  if (!before) return nullptr;
  const Snapshot after(other);
  return after ? publish_models(before.handle(), after.handle(), chosen) : nullptr;
}

PyObject* generation(PyObject* self, PyObject*) {
  const Use use(self);
  if (!use) return nullptr;
  std::uint64_t number = 0;
  stfs_error error;
  const int failed = without_python([&] { return stfs_model_generation(use.handle(), &number, &error); });
  return failed != 0 ? raise(error) : PyLong_FromUnsignedLongLong(number);
}

PyObject* check_current(PyObject* self, PyObject*) {
  const Use use(self);
  if (!use) return nullptr;
  stfs_error error;
  if (without_python([&] { return stfs_model_check_current(use.handle(), &error); }) != 0)
    return raise(error);
  Py_RETURN_NONE;
}

PyObject* upload(PyObject* self, PyObject* arguments) {
  const Use use(self);
  return use ? start_upload(use.handle(), arguments) : nullptr;
}

PyObject* is_closed(PyObject* self, void*) {
  return PyBool_FromLong(of(self).is_closed ? 1 : 0);
}

PyGetSetDef kAttributes[] = {{"is_closed", is_closed, nullptr, "Whether close() was called.", nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef kMethods[] = {
    {"close", as_method(close), METH_NOARGS, "close()\n--\n\n"},
    {"count", as_method(count), METH_NOARGS, "count()\n--\n\n"},
    {"path", as_method(path), METH_NOARGS, "path()\n--\n\n"},
    {"contains", as_method(contains), METH_O, "contains(name)\n--\n\n"},
    {"names", as_method(names), METH_NOARGS, "names()\n--\n\nReturns the names by position."},
    {"metadata", as_method(metadata), METH_NOARGS, "metadata()\n--\n\n"},
    {"not_shown", as_method(not_shown), METH_NOARGS,
     "not_shown()\n--\n\nReturns a reason for each journal whose commit may not be shown."},
    {"tensor", as_method(tensor), METH_VARARGS, "tensor(type, name)\n--\n\nRaises KeyError."},
    {"edit", as_method(edit), METH_NOARGS, "edit()\n--\n\n"},
    {"diff", as_method(diff), METH_VARARGS, "diff(other, patterns, threads, is_brief)\n--\n\n"},
    {"publish", as_method(publish), METH_VARARGS, "publish(other, chosen)\n--\n\n"},
    {"generation", as_method(generation), METH_NOARGS, "generation()\n--\n\n"},
    {"start_upload", as_method(upload), METH_VARARGS,
     "start_upload(devices, rules, patterns, dtype, must_cast, readers, must_verify)\n--\n\n"},
    {"check_current", as_method(check_current), METH_NOARGS, "check_current()\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot kSlots[] = {{Py_tp_new, as_slot(make)},
                        {Py_tp_dealloc, as_slot(deallocate)},
                        {Py_tp_getset, kAttributes},
                        {Py_tp_methods, kMethods},
                        {Py_tp_doc, const_cast<char*>("A model of libstfs.")},
                        {0, nullptr}};

PyType_Spec kSpec = {"stfs._stfs.Model", sizeof(ModelObject), 0, static_cast<unsigned>(Py_TPFLAGS_DEFAULT),
                     kSlots};

}  // namespace

bool add_model_type(PyObject* module) {
  return add_type(module, kSpec) != nullptr;
}

}  // namespace stfs::python
