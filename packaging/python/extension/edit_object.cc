// The methods of _stfs.Edit.
#include "packaging/python/extension/edit_object.h"

#include <new>
#include <string>
#include <utility>
#include <vector>

#include "packaging/python/extension/python_error.h"
#include "packaging/python/extension/tensor_arguments.h"

namespace stfs::python {
namespace {

/// Only one thread uses an edit (stfs/_transaction.py). Guarded by the interpreter's lock otherwise.
struct EditObject {
  PyObject_HEAD  //
      stfs_edit* handle;
  std::vector<Py_buffer>* buffers;  // of put(), until the edit ends
  bool is_busy;                     // a call runs without the interpreter's lock
};

PyTypeObject* edit_type = nullptr;

EditObject& of(PyObject* object) {
  return *reinterpret_cast<EditObject*>(object);
}

void release_buffers(EditObject& edit) {
  for (Py_buffer& buffer : *edit.buffers) PyBuffer_Release(&buffer);
  edit.buffers->clear();
}

/// Calls a function of libstfs without the interpreter's lock: it may wait for the disk, or for a commit of
/// another thread.
/// @return None, or null with an exception: KeyError if a name is missing and `is_mapping` is set.
template <class Call>
PyObject* call(PyObject* self, bool is_mapping, Call&& function) {
  EditObject& edit = of(self);
  if (edit.handle == nullptr || edit.is_busy) {
    PyErr_SetString(PyExc_ValueError, edit.is_busy ? "another thread uses the edit" : "the edit has ended");
    return nullptr;
  }
  edit.is_busy = true;
  stfs_error error;
  const int failed = without_python([&] { return function(edit.handle, &error); });
  edit.is_busy = false;
  if (failed == 0) Py_RETURN_NONE;
  if (!is_mapping || error.code != STFS_NOT_FOUND) return raise(error);
  const Object message(message_of(error.message));
  if (message) PyErr_SetObject(PyExc_KeyError, message.get());
  return nullptr;
}

PyObject* put(PyObject* self, PyObject* arguments) {
  PyObject* name = nullptr;
  const char* dtype_name = nullptr;
  PyObject* tuple = nullptr;
  Py_buffer buffer;
  if (PyArg_ParseTuple(arguments, "UsO!y*:put", &name, &dtype_name, &PyTuple_Type, &tuple, &buffer) == 0) {
    return nullptr;
  }
  const Text known(name);
  const std::int32_t dtype = known ? dtype_named(dtype_name) : -1;
  std::vector<std::uint64_t> shape;
  Object done;
  try {
    if (dtype >= 0 && take_shape(tuple, shape)) {
      // The buffer is kept below, where no failure may be.
      auto& kept = *of(self).buffers;
      if (kept.size() == kept.capacity()) kept.reserve(2 * kept.size() + 1);
      done.reset(call(self, false, [&](stfs_edit* edit, stfs_error* error) {
        return stfs_edit_put(edit, known.text().data, known.text().size_bytes, dtype,
                             static_cast<std::uint32_t>(shape.size()), shape.data(), buffer.buf,
                             static_cast<std::uint64_t>(buffer.len), error);
      }));
    }
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  }
  if (!done) {
    PyBuffer_Release(&buffer);
    return nullptr;
  }
  of(self).buffers->push_back(buffer);  // the vector has room
  return done.release();
}

PyObject* remove(PyObject* self, PyObject* name) {
  const Text known(name);
  if (!known) return nullptr;
  return call(self, true, [&](stfs_edit* edit, stfs_error* error) {
    return stfs_edit_remove(edit, known.text().data, known.text().size_bytes, error);
  });
}

PyObject* rename(PyObject* self, PyObject* pairs) {
  std::vector<Text> texts;
  std::vector<stfs_renaming> renamings;
  if (PyList_Check(pairs) == 0) {
    PyErr_SetString(PyExc_TypeError, "rename() takes a list of pairs");
    return nullptr;
  }
  try {
    for (Py_ssize_t at = 0; at < PyList_Size(pairs); ++at) {
      PyObject* from = nullptr;
      PyObject* to = nullptr;
      if (PyArg_ParseTuple(PyList_GetItem(pairs, at), "UU:rename", &from, &to) == 0) return nullptr;
      for (PyObject* text : {from, to}) {
        texts.emplace_back(text);
        if (!texts.back()) return nullptr;
      }
    }
    for (std::size_t at = 0; at < texts.size(); at += 2) {
      renamings.push_back({texts[at].text(), texts[at + 1].text()});
    }
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  return call(self, true, [&](stfs_edit* edit, stfs_error* error) {
    return stfs_edit_rename(edit, renamings.data(), renamings.size(), error);
  });
}

PyObject* reinterpret(PyObject* self, PyObject* arguments) {
  PyObject* name = nullptr;
  const char* dtype_name = nullptr;
  PyObject* tuple = nullptr;
  if (PyArg_ParseTuple(arguments, "UsO!:reinterpret", &name, &dtype_name, &PyTuple_Type, &tuple) == 0) {
    return nullptr;
  }
  const Text known(name);
  const std::int32_t dtype = known ? dtype_named(dtype_name) : -1;
  std::vector<std::uint64_t> shape;
  try {
    if (dtype < 0 || !take_shape(tuple, shape)) return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  return call(self, true, [&](stfs_edit* edit, stfs_error* error) {
    return stfs_edit_reinterpret(edit, known.text().data, known.text().size_bytes, dtype,
                                 static_cast<std::uint32_t>(shape.size()), shape.data(), error);
  });
}

PyObject* set_metadata(PyObject* self, PyObject* arguments) {
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  if (PyArg_ParseTuple(arguments, "OO:set_metadata", &key, &value) == 0) return nullptr;
  const Text known_key(key);
  if (!known_key) return nullptr;
  if (value == Py_None) {
    return call(self, true, [&](stfs_edit* edit, stfs_error* error) {
      return stfs_edit_set_metadata(edit, known_key.text().data, known_key.text().size_bytes, nullptr, 0,
                                    error);
    });
  }
  const Text known_value(value);
  if (!known_value) return nullptr;
  return call(self, true, [&](stfs_edit* edit, stfs_error* error) {
    return stfs_edit_set_metadata(edit, known_key.text().data, known_key.text().size_bytes,
                                  known_value.text().data, known_value.text().size_bytes, error);
  });
}

PyObject* close(PyObject* self, PyObject*) {
  if (of(self).is_busy) {
    PyErr_SetString(PyExc_ValueError, "another thread uses the edit");
    return nullptr;
  }
  stfs_edit* handle = std::exchange(of(self).handle, nullptr);
  without_python([&] {
    stfs_edit_close(handle);
    return 0;
  });
  release_buffers(of(self));
  Py_RETURN_NONE;
}

PyObject* commit(PyObject* self, PyObject*) {
  return call(self, false, [](stfs_edit* edit, stfs_error* error) { return stfs_edit_commit(edit, error); });
}

PyObject* refuse_new(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "edits come from a model: Model.transaction()");
  return nullptr;
}

void deallocate(PyObject* self) {
  stfs_edit_close(of(self).handle);
  if (of(self).buffers != nullptr) release_buffers(of(self));
  delete of(self).buffers;
  free_object(self);
}

PyMethodDef kMethods[] = {
    {"put", as_method(put), METH_VARARGS,
     "put(name, dtype, shape, data)\n--\n\nThe packed data must not change until the edit ends."},
    {"remove", as_method(remove), METH_O, "remove(name)\n--\n\n"},
    {"rename", as_method(rename), METH_O, "rename([(old, new)])\n--\n\n"},
    {"reinterpret", as_method(reinterpret), METH_VARARGS, "reinterpret(name, dtype, shape)\n--\n\n"},
    {"set_metadata", as_method(set_metadata), METH_VARARGS,
     "set_metadata(key, value)\n--\n\nNone removes the key."},
    {"commit", as_method(commit), METH_NOARGS, "commit()\n--\n\n"},
    {"close", as_method(close), METH_NOARGS, "close()\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot kSlots[] = {{Py_tp_new, as_slot(refuse_new)},
                        {Py_tp_dealloc, as_slot(deallocate)},
                        {Py_tp_methods, kMethods},
                        {Py_tp_doc, const_cast<char*>("An edit of libstfs.")},
                        {0, nullptr}};

PyType_Spec kSpec = {"stfs._stfs.Edit", sizeof(EditObject), 0, static_cast<unsigned>(Py_TPFLAGS_DEFAULT),
                     kSlots};

}  // namespace

PyObject* dtype_of_text(PyObject*, PyObject* text) {
  const char* const utf8 = PyUnicode_AsUTF8AndSize(text, nullptr);
  const std::int32_t dtype = utf8 == nullptr ? -1 : dtype_named(utf8);
  return dtype < 0 ? nullptr : PyUnicode_FromString(stfs_dtype_name(dtype));
}

bool add_edit_type(PyObject* module) {
  edit_type = add_type(module, kSpec);
  return edit_type != nullptr;
}

PyObject* begin_edit(stfs_model* model) {
  stfs_error error;
  stfs_edit* handle = without_python([&] { return stfs_edit_begin(model, nullptr, &error); });
  if (handle == nullptr) return raise(error);
  PyObject* self = PyType_GenericAlloc(edit_type, 0);
  auto* buffers = new (std::nothrow) std::vector<Py_buffer>();
  if (self == nullptr || buffers == nullptr) {
    stfs_edit_close(handle);
    delete buffers;
    Py_XDECREF(self);
    return self == nullptr ? nullptr : PyErr_NoMemory();
  }
  of(self).handle = handle;
  of(self).buffers = buffers;
  return self;
}

}  // namespace stfs::python
