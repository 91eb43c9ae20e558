#include "packaging/python/extension/new_archive.h"

#include <new>
#include <utility>
#include <vector>

#include "packaging/python/extension/call_progress.h"
#include "packaging/python/extension/python_error.h"
#include "packaging/python/extension/tensor_arguments.h"

namespace stfs::python {
namespace {

/// The tensors and the metadata of a new archive, as C has them. Holds the arrays' buffers.
class Content {
 public:
  Content() = default;
  Content(const Content&) = delete;
  Content& operator=(const Content&) = delete;
  ~Content() {
    for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
  }

  /// Returns false with an exception.
  bool take(PyObject* tensors, PyObject* metadata) {
    try {
      return take_tensors(tensors) && take_metadata(metadata);
    } catch (const std::bad_alloc&) {
      PyErr_NoMemory();
      return false;
    }
  }

  /// @return null with an exception.
  stfs_new_archive* make(std::uint64_t alignment, std::uint64_t slack_bytes) const {
    auto options = empty<stfs_new_archive_options>();
    options.has_metadata = has_metadata_ ? 1 : 0;
    options.alignment = alignment;
    options.slack_bytes = slack_bytes;
    stfs_error error;
    auto* made = stfs_new_archive_make(tensors_.data(), tensors_.size(), pairs_.data(), pairs_.size(),
                                       &options, &error);
    if (made == nullptr) raise_safetensor_error(error);
    return made;
  }

 private:
  bool take_tensors(PyObject* list) {
    const auto count = static_cast<std::size_t>(PyList_Size(list));
    texts_.reserve(count);
    shapes_.reserve(count);
    buffers_.reserve(count);
    tensors_.reserve(count);
    for (std::size_t at = 0; at < count; ++at) {
      PyObject* name = nullptr;
      const char* dtype_name = nullptr;
      PyObject* shape = nullptr;
      Py_buffer buffer;
      if (PyArg_ParseTuple(PyList_GetItem(list, static_cast<Py_ssize_t>(at)), "UsO!y*:tensor", &name,
                           &dtype_name, &PyTuple_Type, &shape, &buffer) == 0) {
        return false;
      }
      buffers_.push_back(buffer);  // the vector has room
      texts_.emplace_back(name);
      const std::int32_t dtype = texts_.back() ? dtype_named(dtype_name) : -1;
      if (dtype < 0 || !take_shape(shape, shapes_.emplace_back())) return false;
      tensors_.push_back({texts_.back().text(), dtype, static_cast<std::uint32_t>(shapes_.back().size()),
                          shapes_.back().data(), buffer.buf, static_cast<std::uint64_t>(buffer.len)});
    }
    return true;
  }

  bool take_metadata(PyObject* list) {
    has_metadata_ = list != Py_None;
    for (Py_ssize_t at = 0; has_metadata_ && at < PyList_Size(list); ++at) {
      PyObject* key = nullptr;
      PyObject* value = nullptr;
      if (PyArg_ParseTuple(PyList_GetItem(list, at), "UU:metadata", &key, &value) == 0) return false;
      const Text& its_key = metadata_.emplace_back(key);
      if (!its_key) return false;
      const stfs_text key_text = its_key.text();
      const Text& its_value = metadata_.emplace_back(value);
      if (!its_value) return false;
      pairs_.push_back({key_text, its_value.text()});
    }
    return true;
  }

  std::vector<Text> texts_;
  std::vector<Text> metadata_;
  std::vector<std::vector<std::uint64_t>> shapes_;
  std::vector<Py_buffer> buffers_;
  std::vector<stfs_new_tensor> tensors_;
  std::vector<stfs_metadata_pair> pairs_;
  bool has_metadata_ = false;
};

struct CloseArchive {
  void operator()(stfs_new_archive* archive) const { stfs_new_archive_close(archive); }
};
using Archive = std::unique_ptr<stfs_new_archive, CloseArchive>;

}  // namespace

PyObject* save_archive(PyObject*, PyObject* arguments) {
  PyObject* path = nullptr;
  PyObject* tensors = nullptr;
  PyObject* metadata = nullptr;
  PyObject* progress = nullptr;
  unsigned long long alignment = 0;
  unsigned long long slack_bytes = 0;
  auto options = empty<stfs_save_options>();
  int is_new = 0;
  int is_process_durable = 0;
  if (PyArg_ParseTuple(arguments, "O&O!O(KKIpp)O:save", PyUnicode_FSConverter, &path, &PyList_Type, &tensors,
                       &metadata, &alignment, &slack_bytes, &options.mode, &is_new, &is_process_durable,
                       &progress) == 0) {
    Py_XDECREF(path);
    return nullptr;
  }
  const Object owned_path(path);
  Content content;
  if (!content.take(tensors, metadata)) return nullptr;
  const Archive archive(content.make(alignment, slack_bytes));
  if (!archive) return nullptr;
  options.is_new = is_new;
  options.is_process_durable = is_process_durable;
  options.progress = call_progress;
  options.context = progress;
  const char* text = PyBytes_AsString(path);
  stfs_error error;
  const int failed =
      without_python([&] { return stfs_new_archive_save(archive.get(), text, &options, &error); });
  if (PyErr_Occurred() != nullptr) return nullptr;  // of progress, or of a signal's handler
  if (failed == 0) Py_RETURN_NONE;
  return Py_BuildValue("(iN)", error.errno_value, message_of(error.message));
}

PyObject* serialize_archive(PyObject*, PyObject* arguments) {
  PyObject* tensors = nullptr;
  PyObject* metadata = nullptr;
  if (PyArg_ParseTuple(arguments, "O!O:serialize", &PyList_Type, &tensors, &metadata) == 0) return nullptr;
  Content content;
  if (!content.take(tensors, metadata)) return nullptr;
  const Archive archive(content.make(0, 0));
  if (!archive) return nullptr;
  Object bytes(
      PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(stfs_new_archive_size(archive.get()))));
  if (!bytes) return nullptr;
  char* to = PyBytes_AsString(bytes.get());
  without_python([&] {
    stfs_new_archive_copy(archive.get(), to);
    return 0;
  });
  return bytes.release();
}

}  // namespace stfs::python
