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

PyTypeObject* upload_type = nullptr;  // lives as long as the process

/// The texts of a list of str, for functions of C. Owns the bytes.
class Texts {
 public:
  /// @param list  None means no text.
  /// @return false with an exception if the list has something else than str.
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
  UploadObject& upload = of(self);
  without_python([&] {  // stfs_upload_close() waits for the upload's threads
    stfs_upload_close(upload.handle);
    stfs_plan_close(upload.plan);
    return true;
  });
  free_object(self);
}

PyObject* refuse_new(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "uploads come from a model: stfs.open(path).start_upload(...)");
  return nullptr;
}

PyObject* poll(PyObject* self, PyObject*) {
  auto progress = empty<stfs_upload_progress>();
  stfs_error error;
  if (stfs_upload_poll(of(self).handle, &progress, &error) != 0) return raise(error);
  return Py_BuildValue("(KKN)", static_cast<unsigned long long>(progress.done_bytes),
                       static_cast<unsigned long long>(progress.total_bytes),
                       PyBool_FromLong(progress.is_done));
}

PyObject* cancel(PyObject* self, PyObject*) {
  stfs_upload_cancel(of(self).handle);
  Py_RETURN_NONE;
}

PyObject* left_out(PyObject* self, PyObject*) {
  return list_of(stfs_plan_left_out_count(of(self).plan), [&](std::uint64_t at) {
    stfs_text name{};
    stfs_error error;
    return stfs_plan_left_out(of(self).plan, at, &name, &error) != 0 ? raise(error) : text_of(name);
  });
}

PyObject* tensors_of(const stfs_resident* resident, PyObject* type) {
  return list_of(stfs_resident_count(resident), [&](std::uint64_t at) {
    stfs_error error;
    stfs_tensor* handle = stfs_resident_tensor(resident, at, &error);
    return handle == nullptr ? raise(error) : new_tensor(type, handle);
  });
}

PyObject* wait(PyObject* self, PyObject* type) {
  stfs_error error;
  stfs_upload* upload = of(self).handle;
  const std::unique_ptr<stfs_resident, decltype(&stfs_resident_close)> resident(
      without_python([&] { return stfs_upload_wait(upload, nullptr, nullptr, &error); }),
      stfs_resident_close);
  if (!resident) return raise(error);
  auto report = empty<stfs_upload_report>();
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
  upload_type = add_type(module, kSpec);
  return upload_type != nullptr;
}

PyObject* start_upload(const stfs_model* model, PyObject* arguments) {
  auto plan_options = empty<stfs_plan_options>();
  auto options = empty<stfs_upload_options>();
  PyObject* patterns = nullptr;
  int must_cast = 0;
  int must_verify = 0;
  if (PyArg_ParseTuple(arguments, "zzOzpIp:start_upload", &plan_options.devices, &plan_options.rules,
                       &patterns, &plan_options.dtype, &must_cast, &options.readers, &must_verify) == 0) {
    return nullptr;
  }
  plan_options.must_cast = must_cast;
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
  upload.handle = without_python([&]() -> stfs_upload* {
    upload.plan = stfs_plan_make(model, &plan_options, &error);
    return upload.plan == nullptr ? nullptr : stfs_upload_start(upload.plan, &options, &error);
  });
  if (upload.handle == nullptr) return raise(error);
  return self.release();
}

PyObject* list_devices(PyObject*, PyObject*) {
  stfs_error error;
  const std::unique_ptr<stfs_device_list, decltype(&stfs_device_list_close)> known(
      without_python([&] { return stfs_device_list_make(&error); }),  // a driver may need seconds
      stfs_device_list_close);
  if (!known) return raise(error);
  PyObject* list = list_of(stfs_device_list_count(known.get()), [&](std::uint64_t at) {
    auto info = empty<stfs_device_info>();
    if (stfs_device_list_describe(known.get(), at, &info, &error) != 0) return raise(error);
    // "N" takes the reference over. It fails for a null, which is a number that could not be made.
    PyObject* const free_bytes =
        info.free_bytes == UINT64_MAX ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(info.free_bytes);
    return Py_BuildValue("(sssKNs)", info.name, info.uuid, info.description,
                         static_cast<unsigned long long>(info.total_bytes), free_bytes, info.problem);
  });
  return list == nullptr ? nullptr : Py_BuildValue("(Ns)", list, stfs_device_list_why_no_cuda(known.get()));
}

}  // namespace stfs::python
