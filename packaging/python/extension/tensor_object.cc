// The methods of _stfs.Tensor.
#include "packaging/python/extension/tensor_object.h"

#include <algorithm>
#include <new>
#include <string>
#include <vector>

#include "packaging/python/extension/dlpack.h"
#include "packaging/python/extension/dlpack_format.h"
#include "packaging/python/extension/python_error.h"

namespace stfs::python {
namespace {

/// The memory that a Py_buffer points to, unchanged while the tensor exists.
struct Layout {
  stfs_tensor_info info = empty<stfs_tensor_info>();
  std::vector<Py_ssize_t> shape;
  std::vector<Py_ssize_t> strides;  // in bytes
  Py_ssize_t element_bytes = 1;
  const char* format = "B";
  bool is_packed = true;
};

struct TensorObject {
  PyObject_HEAD  //
      stfs_tensor* handle;
  Layout* layout;
};

TensorObject& of(PyObject* object) {
  return *reinterpret_cast<TensorObject*>(object);
}

/// Returns the format letter of the module struct and of NumPy. BF16 and the 8-bit floats have no letter, so
/// they get the letter of the unsigned integer of their size.
const char* format_of(std::int32_t dtype) {
  switch (dtype) {
    case STFS_BOOL: return "?";
    case STFS_I8: return "b";
    case STFS_I16: return "h";
    case STFS_U16:
    case STFS_BF16: return "H";
    case STFS_F16: return "e";
    case STFS_I32: return "i";
    case STFS_U32: return "I";
    case STFS_F32: return "f";
    case STFS_C64: return "Zf";
    case STFS_F64: return "d";
    case STFS_I64: return "q";
    case STFS_U64: return "Q";
    default: return "B";
  }
}

/// Whether Py_ssize_t and DLPack's int64_t hold each extent and each stride. A tensor without elements may
/// have a shape of any size beside its 0; NumPy refuses the same shapes.
bool has_signed_layout(const stfs_tensor_info& info) {
  auto left = static_cast<std::uint64_t>(PY_SSIZE_T_MAX) / std::max(stfs_dtype_bits(info.dtype) / 8, 1U);
  for (std::uint32_t dimension = 0; dimension < info.rank; ++dimension)
    left /= std::max<std::uint64_t>(info.shape[dimension], 1);
  return left > 0;
}

/// The tensor must have has_signed_layout().
void fill_layout(Layout& layout) {
  const stfs_tensor_info& info = layout.info;
  const std::uint32_t bits = stfs_dtype_bits(info.dtype);
  layout.format = format_of(info.dtype);
  if (bits < 8) {  // the packed bytes
    layout.shape = {static_cast<Py_ssize_t>(info.size_bytes)};
    layout.strides = {1};
    return;
  }
  layout.element_bytes = static_cast<Py_ssize_t>(bits / 8);
  layout.shape.assign(info.shape, info.shape + info.rank);
  layout.strides.resize(info.rank);
  Py_ssize_t packed = layout.element_bytes;
  for (std::size_t dimension = info.rank; dimension-- > 0;) {
    const auto stride = info.strides_bytes != nullptr ? info.strides_bytes[dimension] : packed;
    layout.strides[dimension] = static_cast<Py_ssize_t>(stride);
    if (layout.shape[dimension] > 1 && stride != packed) layout.is_packed = false;
    packed *= layout.shape[dimension];
  }
  if (info.size_bytes == 0) layout.is_packed = true;
}

PyObject* refuse_new(PyTypeObject*, PyObject*, PyObject*) {
  PyErr_SetString(PyExc_TypeError, "tensors come from a model: stfs.open(path)[name]");
  return nullptr;
}

void deallocate(PyObject* self) {
  delete of(self).layout;
  stfs_tensor_close(of(self).handle);
  free_object(self);
}

/// Returns the address of the tensor's bytes, or null with an error. The first call for a slice may gather
/// them.
void* data_of(PyObject* self, stfs_error& error) {
  const stfs_tensor* handle = of(self).handle;
  return without_python([&] { return stfs_tensor_data(handle, &error); });
}

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const Layout& layout = *of(self).layout;
  view->obj = nullptr;
  const auto refuse = [](const char* why) {
    PyErr_SetString(PyExc_BufferError, why);
    return -1;
  };
  if (layout.info.device_kind != STFS_CPU) return refuse("the tensor is on a GPU: use DLPack");
  const bool is_read_only = (layout.info.flags & STFS_WRITABLE) == 0;
  if ((flags & PyBUF_WRITABLE) != 0 && is_read_only) return refuse("the tensor is read-only: use its copy()");
  const bool wants_strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES;
  const bool wants_packed = (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS ||
                            (flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS || !wants_strides;
  if (wants_packed && !layout.is_packed) return refuse("the slice is not contiguous: use its copy()");
  if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && layout.shape.size() > 1) {
    return refuse("the order of the tensor is C");
  }
  stfs_error error;
  void* data = data_of(self, error);
  if (data == nullptr) {
    raise(error);
    return -1;
  }
  view->buf = data;
  view->len = static_cast<Py_ssize_t>(layout.info.size_bytes);
  view->readonly = is_read_only ? 1 : 0;
  view->itemsize = layout.element_bytes;
  view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(layout.format) : nullptr;
  // A consumer that asks for no shape gets one dimension of bytes. memoryview would read the shape of more
  // than one dimension.
  const bool wants_shape = (flags & PyBUF_ND) != 0;
  view->ndim = wants_shape ? static_cast<int>(layout.shape.size()) : 1;
  view->shape = wants_shape ? const_cast<Py_ssize_t*>(layout.shape.data()) : nullptr;
  view->strides = wants_strides ? const_cast<Py_ssize_t*>(layout.strides.data()) : nullptr;
  view->suboffsets = nullptr;
  view->internal = nullptr;
  Py_INCREF(self);
  view->obj = self;
  return 0;
}

/// Returns a tuple of integers.
template <class Numbers>
PyObject* tuple_of(const Numbers& numbers, std::size_t count) {
  Object tuple(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t at = 0; tuple && at < count; ++at) {
    PyObject* number = PyLong_FromLongLong(static_cast<long long>(numbers[at]));
    if (number == nullptr || PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(at), number) != 0)
      return nullptr;
  }
  return tuple.release();
}

PyObject* get_name(PyObject* self, void*) {
  return text_of(of(self).layout->info.name);
}
PyObject* get_dtype(PyObject* self, void*) {
  return PyUnicode_FromString(stfs_dtype_name(of(self).layout->info.dtype));
}
PyObject* get_bits(PyObject* self, void*) {
  return PyLong_FromUnsignedLong(stfs_dtype_bits(of(self).layout->info.dtype));
}
PyObject* get_shape(PyObject* self, void*) {
  const stfs_tensor_info& info = of(self).layout->info;
  return tuple_of(info.shape, info.rank);
}
PyObject* get_strides(PyObject* self, void*) {
  const Layout& layout = *of(self).layout;
  if (stfs_dtype_bits(layout.info.dtype) < 8) Py_RETURN_NONE;
  return tuple_of(layout.strides, layout.strides.size());
}
PyObject* get_nbytes(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(of(self).layout->info.size_bytes);
}
PyObject* get_device(PyObject* self, void*) {
  const stfs_tensor_info& info = of(self).layout->info;
  if (info.device_kind == STFS_CPU) return PyUnicode_FromString("cpu");
  return PyUnicode_FromFormat("cuda:%d", info.device_index);
}
PyObject* get_archive(PyObject* self, void*) {
  return PyUnicode_DecodeFSDefault(of(self).layout->info.archive);
}
PyObject* get_offset(PyObject* self, void*) {
  return PyLong_FromUnsignedLongLong(of(self).layout->info.offset);
}
PyObject* get_is_mapped(PyObject* self, void*) {
  return PyBool_FromLong((of(self).layout->info.flags & STFS_MAPPED) != 0);
}
PyObject* get_is_read_only(PyObject* self, void*) {
  return PyBool_FromLong((of(self).layout->info.flags & STFS_WRITABLE) == 0);
}
PyObject* get_address(PyObject* self, void*) {
  stfs_error error;
  void* data = data_of(self, error);
  return data == nullptr ? raise(error) : PyLong_FromVoidPtr(data);
}

PyObject* slice(PyObject* self, PyObject* argument) {
  Object text(PyUnicode_AsUTF8String(argument));
  if (!text) return nullptr;
  const char* bytes = PyBytes_AsString(text.get());
  if (bytes == nullptr) return nullptr;
  stfs_error error;
  stfs_tensor* handle = stfs_tensor_slice(of(self).handle, bytes, &error);
  return handle == nullptr ? raise(error) : new_tensor(reinterpret_cast<PyObject*>(Py_TYPE(self)), handle);
}

PyObject* copy(PyObject* self, PyObject*) {
  stfs_error error;
  const stfs_tensor* from = of(self).handle;
  stfs_tensor* handle = without_python([&] { return stfs_tensor_copy(from, &error); });
  return handle == nullptr ? raise(error) : new_tensor(reinterpret_cast<PyObject*>(Py_TYPE(self)), handle);
}

PyObject* to_bytes(PyObject* self, PyObject*) {
  const stfs_tensor* handle = of(self).handle;
  const std::uint64_t size_bytes = of(self).layout->info.size_bytes;
  Object bytes(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size_bytes)));
  if (!bytes) return nullptr;
  char* to = PyBytes_AsString(bytes.get());
  stfs_error error;
  const int failed = without_python(
      [&] { return stfs_tensor_read(handle, 0, to, static_cast<std::size_t>(size_bytes), &error); });
  return failed != 0 ? raise(error) : bytes.release();
}

PyObject* read_into(PyObject* self, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"to", "offset", nullptr};
  Py_buffer to;
  unsigned long long offset = 0;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "w*|K:read_into", const_cast<char**>(names), &to,
                                  &offset) == 0) {
    return nullptr;
  }
  const stfs_tensor* handle = of(self).handle;
  const std::uint64_t size_bytes = of(self).layout->info.size_bytes;
  const std::uint64_t left_bytes = offset < size_bytes ? size_bytes - offset : 0;
  const auto wanted = static_cast<std::uint64_t>(to.len);
  const auto count = static_cast<std::size_t>(wanted < left_bytes ? wanted : left_bytes);
  stfs_error error;
  const int failed = without_python(
      [&] { return count == 0 ? 0 : stfs_tensor_read(handle, offset, to.buf, count, &error); });
  PyBuffer_Release(&to);
  return failed != 0 ? raise(error) : PyLong_FromSize_t(count);
}

/// Reads a pair of small numbers. Returns false with TypeError if it is not one.
bool take_pair(PyObject* pair, const char* what, unsigned int& first, unsigned int& second) {
  if (PyTuple_Check(pair) != 0) return PyArg_ParseTuple(pair, "II", &first, &second) != 0;
  PyErr_Format(PyExc_TypeError, "%s is not a pair of numbers", what);
  return false;
}

bool has_device(const stfs_tensor_info& info, PyObject* wanted) {
  unsigned int type = 0;
  unsigned int id = 0;
  if (!take_pair(wanted, "dl_device", type, id)) return false;
  const auto own = static_cast<unsigned int>(info.device_kind == STFS_CPU ? dlpack::kCpu : dlpack::kCuda);
  if (type == own && id == static_cast<unsigned int>(info.device_index)) return true;
  PyErr_Format(PyExc_BufferError, "the tensor is on device (%u, %d), not on (%u, %u)", own, info.device_index,
               type, id);
  return false;
}

PyObject* dlpack_capsule(PyObject* self, PyObject* arguments, PyObject* keywords) {
  static const char* names[] = {"stream", "max_version", "dl_device", "copy", nullptr};
  PyObject* stream = Py_None;  // an upload ends before its tensors exist, so any stream may read them
  PyObject* max_version = Py_None;
  PyObject* device = Py_None;
  PyObject* copy = Py_None;
  if (PyArg_ParseTupleAndKeywords(arguments, keywords, "|$OOOO:__dlpack__", const_cast<char**>(names),
                                  &stream, &max_version, &device, &copy) == 0) {
    return nullptr;
  }
  DlpackRequest request;
  if (max_version != Py_None) {
    unsigned int major = 0;
    if (!take_pair(max_version, "max_version", major, request.minor_version)) return nullptr;
    request.major_version = major;
  }
  if (copy != Py_None) {
    const int is_true = PyObject_IsTrue(copy);
    if (is_true < 0) return nullptr;
    request.copy = is_true != 0;
  }
  if (device != Py_None && !has_device(of(self).layout->info, device)) return nullptr;
  return make_capsule(*of(self).handle, request);
}

PyObject* dlpack_device(PyObject* self, PyObject*) {
  const stfs_tensor_info& info = of(self).layout->info;
  return Py_BuildValue("(ii)", info.device_kind == STFS_CPU ? dlpack::kCpu : dlpack::kCuda,
                       info.device_index);
}

PyGetSetDef kAttributes[] = {
    {"name", get_name, nullptr, "The tensor's name in the model.", nullptr},
    {"dtype", get_dtype, nullptr, "The name in the archive: 'BF16', 'F8_E4M3', 'I64', ...", nullptr},
    {"bits", get_bits, nullptr, "Bits of one element: 4, 6, 8, 16, 32 or 64.", nullptr},
    {"shape", get_shape, nullptr, "Number of elements of each dimension.", nullptr},
    {"strides", get_strides, nullptr,
     "Bytes between two elements of each dimension; None if elements are smaller than a byte.", nullptr},
    {"nbytes", get_nbytes, nullptr, "Bytes of its packed elements.", nullptr},
    {"device", get_device, nullptr, "'cpu' or 'cuda:N'.", nullptr},
    {"archive", get_archive, nullptr, "Path of the file that holds the tensor.", nullptr},
    {"offset", get_offset, nullptr, "Offset of its first element in that file, in bytes.", nullptr},
    {"is_mapped", get_is_mapped, nullptr, "Whether its memory consists of the archive's own pages.", nullptr},
    {"is_read_only", get_is_read_only, nullptr, "Whether its memory must not be written to.", nullptr},
    {"address", get_address, nullptr,
     "Address of its first element in the memory of its device. Valid as long as the tensor exists.",
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef kMethods[] = {
    {"slice", as_method(slice), METH_O,
     "slice(text)\n--\n\nReturns some of its elements, by NumPy's basic indexing as a text: '0:10, :, -1'."},
    {"copy", as_method(copy), METH_NOARGS,
     "copy()\n--\n\nReturns a copy of the tensor in writable memory.\n\n"
     "Reads the file. A truncated file raises OSError (EIO), and never a signal."},
    {"tobytes", as_method(to_bytes), METH_NOARGS,
     "tobytes()\n--\n\nReturns its packed elements as bytes, row-major and little-endian. Fails as copy() "
     "does."},
    {"read_into", as_method(read_into), METH_VARARGS | METH_KEYWORDS,
     "read_into(to, offset=0)\n--\n\nCopies its packed bytes from `offset` on into a writable buffer, "
     "until the buffer is full. Fails as copy() does.\n\nReturns the number of copied bytes."},
    {"__dlpack__", as_method(dlpack_capsule), METH_VARARGS | METH_KEYWORDS,
     "__dlpack__(*, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "For from_dlpack() of PyTorch, NumPy, JAX and others. Shares the memory without a copy.\n\n"
     "Consumers of DLPack 1.0 see the memory as read-only. Older consumers treat all memory as writable: "
     "they\n"
     "get pages that are copied on write (tensors below 64 KiB are copied at once), so no archive changes. "
     "A\n"
     "type that the consumer's version does not know becomes uint8."},
    {"__dlpack_device__", as_method(dlpack_device), METH_NOARGS,
     "__dlpack_device__()\n--\n\nReturns (device type, number)."},
    {nullptr, nullptr, 0, nullptr}};

// The stable ABI has these slots from 3.11 on. Python 3.10 has the same numbers.
PyType_Slot kSlots[] = {{Py_tp_new, as_slot(refuse_new)},
                        {Py_tp_dealloc, as_slot(deallocate)},
                        {Py_tp_getset, kAttributes},
                        {Py_tp_methods, kMethods},
                        {Py_bf_getbuffer, as_slot(get_buffer)},
                        {Py_tp_doc, const_cast<char*>("A tensor of libstfs.")},
                        {0, nullptr}};

PyType_Spec kSpec = {"stfs._stfs.Tensor", sizeof(TensorObject), 0,
                     static_cast<unsigned>(Py_TPFLAGS_DEFAULT) | Py_TPFLAGS_BASETYPE, kSlots};

}  // namespace

bool add_tensor_type(PyObject* module) {
  return add_type(module, kSpec) != nullptr;
}

PyObject* new_tensor(PyObject* type, stfs_tensor* handle) {
  std::unique_ptr<stfs_tensor, decltype(&stfs_tensor_close)> owned(handle, stfs_tensor_close);
  auto layout = std::unique_ptr<Layout>(new (std::nothrow) Layout());
  if (!layout) return PyErr_NoMemory();
  stfs_error error;
  if (stfs_tensor_describe(handle, &layout->info, &error) != 0) return raise(error);
  if (!has_signed_layout(layout->info)) {
    const Object name(text_of(layout->info.name));
    if (name) PyErr_Format(PyExc_ValueError, "%R: its shape has no elements, and is too large", name.get());
    return nullptr;
  }
  try {
    fill_layout(*layout);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  PyObject* self = PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(type), 0);
  if (self == nullptr) return nullptr;
  of(self).handle = owned.release();
  of(self).layout = layout.release();
  return self;
}

}  // namespace stfs::python
