// The module stfs._stfs: libstfs for Python.
//
// ctypes on libstfs.so is not enough: before Python 3.12 only C can offer the buffer protocol, and a consumer
// of DLPack may free a tensor without Python, on any thread. The module contains the library, so the package
// needs no other file.
#include "packaging/python/extension/edit_object.h"
#include "packaging/python/extension/lease_object.h"
#include "packaging/python/extension/model_object.h"
#include "packaging/python/extension/new_archive.h"
#include "packaging/python/extension/python.h"
#include "packaging/python/extension/python_error.h"
#include "packaging/python/extension/tensor_object.h"
#include "packaging/python/extension/upload_object.h"
#include "packaging/python/extension/weight_sync.h"

namespace {

using namespace stfs::python;

PyMethodDef kFunctions[] = {
    {"dtype_named", as_method(dtype_of_text), METH_O,
     "dtype_named(text)\n--\n\nThe archive's name of the dtype that a text means."},
    {"devices", as_method(list_devices), METH_NOARGS, "devices()\n--\n\n"},
    {"attach", as_method(attach), METH_VARARGS, "attach(socket, seconds)\n--\n\n"},
    {"save", as_method(save_archive), METH_VARARGS,
     "save(path, tensors, metadata, options, progress)\n--\n\n"},
    {"serialize", as_method(serialize_archive), METH_VARARGS, "serialize(tensors, metadata)\n--\n\n"},
    {"pull", as_method(pull), METH_VARARGS,
     "pull(model, published, to, threads, process, wait, on_event, progress)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT,
                       "stfs._stfs",
                       "libstfs for Python; use the package stfs.",
                       -1,
                       kFunctions,
                       nullptr,
                       nullptr,
                       nullptr,
                       nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__stfs() {
  Object module(PyModule_Create(&kModule));
  if (!module || !add_errors(module.get()) || !add_tensor_type(module.get()) ||
      !add_model_type(module.get()) || !add_edit_type(module.get()) || !add_upload_type(module.get()) ||
      !add_lease_type(module.get()) ||
      PyModule_AddStringConstant(module.get(), "version", stfs_version()) != 0) {
    return nullptr;
  }
  return module.release();
}
