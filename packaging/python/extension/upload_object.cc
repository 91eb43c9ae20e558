// The methods of _stfs.Upload, and the list of devices.
#include "packaging/python/extension/upload_object.h"

#include <new>
#include <utility>
#include <vector>

#include "packaging/python/extension/python_error.h"
#include "packaging/python/extension/tensor_object.h"

namespace stfs::python {
namespace {

struct UploadObject {
  PyObject_HEAD  //
      stfs_plan* plan;
  stfs_upload* handle;
};

UploadObject& of(PyObject* object) {
  return *reinterpret_cast<UploadObject*>(object);
}

PyTypeObject* upload_type = nullptr;  // owned, as long as the process

PyObject* text_of(stfs_text text) {
  return PyUnicode_DecodeUTF8(text.data, static_cast<Py_ssize_t>(text.size_bytes), "surrogatepass");
}

/// A list of str as C wants it. The bytes live as long as this does.
class Texts {
 public:
  /// @param list  None: no text. False with an exception where it holds something else.
  bool take(PyObject* list) {
    if (list == Py_None) return true;
    const Py_ssize_t count = PyList_Size(list);
    for (Py_ssize_t at = 0; at < count; ++at) {
      PyObject* text = PyList_GetItem(list, at);
      owned_.emplace_back(text == nullptr ? nullptr
                                          : PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass"));
      const char* bytes = owned_.back() ? PyBytes_AsString(owned_.back().get()) : nullptr;
      if (bytes == nullptr) return false;
      texts_.push_back(bytes);
    }
    return count >= 0;
  }
  [[nodiscard]] const std::vector<const char*>& get() const { return texts_; }

 private:
  std::vector<Object> owned_;
  std::vector<const char*> texts_;
};

void deallocate(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  {
    const WithoutPython unlocked;  // it waits for the upload's threads
    stfs_upload_close(of(self).handle);
    stfs_plan_close(of(self).plan);
  }
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyObject* refuse_new(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "uploads come from a model: stfs.open(path).start_upload(...)");
  return nullptr;
}

PyObject* poll(PyObject* self, PyObject*) {
  stfs_progress progress{};
  progress.struct_bytes = sizeof progress;
  stfs_error error;
  if (stfs_poll(of(self).handle, &progress, &error) != 0) return raise(error);
  return Py_BuildValue("(KKN)", static_cast<unsigned long long>(progress.done_bytes),
                       static_cast<unsigned long long>(progress.total_bytes),
                       PyBool_FromLong(progress.is_done));
}

PyObject* cancel(PyObject* self, PyObject*) {
  stfs_cancel(of(self).handle);
  Py_RETURN_NONE;
}

PyObject* left_out(PyObject* self, PyObject*) {
  const std::uint64_t count = stfs_plan_left_out_count(of(self).plan);
  Object names(PyList_New(0));
  for (std::uint64_t at = 0; names && at < count; ++at) {
    stfs_text name{};
    stfs_error error;
    if (stfs_plan_left_out(of(self).plan, at, &name, &error) != 0) return raise(error);
    const Object text(text_of(name));
    if (!text || PyList_Append(names.get(), text.get()) != 0) return nullptr;
  }
  return names.release();
}

PyObject* tensors_of(const stfs_resident* resident, PyObject* type) {
  Object tensors(PyList_New(0));
  for (std::uint64_t at = 0; tensors && at < stfs_resident_count(resident); ++at) {
    stfs_error error;
    stfs_tensor* handle = stfs_resident_tensor(resident, at, &error);
    if (handle == nullptr) return raise(error);
    const Object tensor(new_tensor(type, handle));
    if (!tensor || PyList_Append(tensors.get(), tensor.get()) != 0) return nullptr;
  }
  return tensors.release();
}

PyObject* wait(PyObject* self, PyObject* type) {
  stfs_error error;
  std::unique_ptr<stfs_resident, decltype(&stfs_resident_close)> resident(nullptr, stfs_resident_close);
  {
    const WithoutPython unlocked;
    resident.reset(stfs_wait(of(self).handle, nullptr, nullptr, &error));
  }
  if (!resident) return raise(error);
  stfs_upload_report report{};
  report.struct_bytes = sizeof report;
  if (stfs_resident_report(resident.get(), &report, &error) != 0) return raise(error);
  Object tensors(tensors_of(resident.get(), type));
  if (!tensors) return nullptr;
  return Py_BuildValue("(N(KKKKK))", tensors.release(), static_cast<unsigned long long>(report.duration_ns),
                       static_cast<unsigned long long>(report.read_bytes),
                       static_cast<unsigned long long>(report.cached_bytes),
                       static_cast<unsigned long long>(report.overflow_count),
                       static_cast<unsigned long long>(report.verified_bytes));
}

PyMethodDef kMethods[] = {{"poll", as_method(poll), METH_NOARGS,
                           "poll()\n--\n\nReturns (done bytes, total bytes, whether the upload has ended)."},
                          {"cancel", as_method(cancel), METH_NOARGS, "cancel()\n--\n\n"},
                          {"left_out", as_method(left_out), METH_NOARGS, "left_out()\n--\n\n"},
                          {"wait", as_method(wait), METH_O, "wait(type)\n--\n\nReturns (tensors, report)."},
                          {nullptr, nullptr, 0, nullptr}};

PyType_Slot kSlots[] = {{Py_tp_new, as_slot(refuse_new)},
                        {Py_tp_dealloc, as_slot(deallocate)},
                        {Py_tp_methods, kMethods},
                        {Py_tp_doc, const_cast<char*>("An upload of libstfs.")},
                        {0, nullptr}};

PyType_Spec kSpec = {"stfs._stfs.Upload", sizeof(UploadObject), 0, static_cast<unsigned>(Py_TPFLAGS_DEFAULT),
                     kSlots};

}  // namespace

bool add_upload_type(PyObject* module) {
  upload_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&kSpec));
  return upload_type != nullptr &&
         PyModule_AddObjectRef(module, "Upload", reinterpret_cast<PyObject*>(upload_type)) == 0;
}

PyObject* start_upload(const stfs_model* model, PyObject* arguments) {
  stfs_plan_options plan_options{};
  plan_options.struct_bytes = sizeof plan_options;
  stfs_upload_options options{};
  options.struct_bytes = sizeof options;
  PyObject* patterns = nullptr;
  int must_verify = 0;
  if (PyArg_ParseTuple(arguments, "zzOzIp:start_upload", &plan_options.devices, &plan_options.rules,
                       &patterns, &plan_options.dtype, &options.readers, &must_verify) == 0) {
    return nullptr;
  }
  options.must_verify = must_verify;
  Texts texts;
  try {
    if (!texts.take(patterns)) return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  plan_options.patterns = texts.get().data();
  plan_options.pattern_count = texts.get().size();
  Object self(PyType_GenericAlloc(upload_type, 0));
  if (!self) return nullptr;
  UploadObject& upload = of(self.get());
  stfs_error error;
  {
    const WithoutPython unlocked;
    upload.plan = stfs_plan_make(model, &plan_options, &error);
    if (upload.plan != nullptr) upload.handle = stfs_start(upload.plan, &options, &error);
  }
  if (upload.handle == nullptr) return raise(error);
  return self.release();
}

PyObject* list_devices(PyObject*, PyObject*) {
  stfs_error error;
  std::unique_ptr<stfs_device_list, decltype(&stfs_device_list_close)> known(nullptr, stfs_device_list_close);
  {
    const WithoutPython unlocked;  // a driver may take its time
    known.reset(stfs_list_devices(&error));
  }
  if (!known) return raise(error);
  Object list(PyList_New(0));
  for (std::uint64_t at = 0; list && at < stfs_device_count(known.get()); ++at) {
    stfs_device_info info{};
    info.struct_bytes = sizeof info;
    if (stfs_device(known.get(), at, &info, &error) != 0) return raise(error);
    // "N" takes the reference over; a number that could not be made is a null, which fails the tuple.
    PyObject* const free_bytes =
        info.free_bytes == UINT64_MAX ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(info.free_bytes);
    const Object device(Py_BuildValue("(sssKNs)", info.name, info.uuid, info.description,
                                      static_cast<unsigned long long>(info.total_bytes), free_bytes,
                                      info.problem));
    if (!device || PyList_Append(list.get(), device.get()) != 0) return nullptr;
  }
  return list ? Py_BuildValue("(Ns)", list.release(), stfs_why_no_cuda(known.get())) : nullptr;
}

}  // namespace stfs::python
