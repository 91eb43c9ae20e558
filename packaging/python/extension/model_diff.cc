// Turns a stfs_diff into tuples.
#include "packaging/python/extension/model_diff.h"

#include <cmath>
#include <new>
#include <vector>

#include "packaging/python/extension/call_progress.h"
#include "packaging/python/extension/python_error.h"

namespace stfs::python {
namespace {

/// Returns None for a tensor that the model lacks.
PyObject* shape_of(std::int32_t dtype, const std::uint64_t* shape, std::uint32_t rank) {
  if (dtype < 0) Py_RETURN_NONE;
  Object tuple(PyTuple_New(static_cast<Py_ssize_t>(rank)));
  for (std::uint32_t at = 0; tuple && at < rank; ++at) {
    PyObject* size = PyLong_FromUnsignedLongLong(shape[at]);
    if (size == nullptr || PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(at), size) != 0) {
      return nullptr;
    }
  }
  return tuple.release();
}

PyObject* statistics_of(const stfs_difference& its) {
  if (its.has_statistics == 0) Py_RETURN_NONE;
  Object cosine(std::isnan(its.cosine) ? Py_BuildValue("") : PyFloat_FromDouble(its.cosine));
  if (!cosine) return nullptr;
  return Py_BuildValue("(KKddOddd)", static_cast<unsigned long long>(its.different),
                       static_cast<unsigned long long>(its.not_finite), its.largest_difference,
                       its.largest_relative_difference, cosine.get(), its.norm_a, its.norm_b,
                       its.norm_difference);
}

PyObject* row_of(const stfs_diff* diff, std::uint64_t at) {
  auto its = empty<stfs_difference>();
  stfs_error error;
  if (stfs_diff_tensor(diff, at, &its, &error) != 0) return raise(error);
  const Object name(text_of(its.name));
  const Object shape_a(shape_of(its.dtype_a, its.shape_a, its.rank_a));
  const Object shape_b(shape_of(its.dtype_b, its.shape_b, its.rank_b));
  const Object statistics(statistics_of(its));
  if (!name || !shape_a || !shape_b || !statistics) return nullptr;
  return Py_BuildValue("(OIzOzOO)", name.get(), its.kinds, stfs_dtype_name(its.dtype_a), shape_a.get(),
                       stfs_dtype_name(its.dtype_b), shape_b.get(), statistics.get());
}

PyObject* value_of(stfs_text text) {
  if (text.data == nullptr) Py_RETURN_NONE;
  return text_of(text);
}

PyObject* entry_of(const stfs_diff* diff, std::uint64_t at) {
  stfs_text key{};
  stfs_text value_a{};
  stfs_text value_b{};
  stfs_error error;
  if (stfs_diff_metadata(diff, at, &key, &value_a, &value_b, &error) != 0) return raise(error);
  const Object its_key(text_of(key));
  const Object a(value_of(value_a));
  const Object b(value_of(value_b));
  if (!its_key || !a || !b) return nullptr;
  return Py_BuildValue("(OOO)", its_key.get(), a.get(), b.get());
}

}  // namespace

PyObject* compare_models(const stfs_model* a, const stfs_model* b, PyObject* patterns, unsigned int threads,
                         int is_brief, PyObject* progress) {
  auto options = empty<stfs_diff_options>();
  options.threads = threads;
  options.is_brief = is_brief;
  options.progress = call_progress;
  options.context = progress;
  std::vector<Object> owned;
  std::vector<const char*> texts;
  try {
    for (Py_ssize_t at = 0; patterns != Py_None && at < PyList_Size(patterns); ++at) {
      owned.emplace_back(PyUnicode_AsUTF8String(PyList_GetItem(patterns, at)));
      if (!owned.back()) return nullptr;
      texts.push_back(PyBytes_AsString(owned.back().get()));
    }
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  options.patterns = texts.data();
  options.pattern_count = texts.size();
  stfs_error error;
  const std::unique_ptr<stfs_diff, decltype(&stfs_diff_close)> diff(
      without_python([&] { return stfs_diff_make(a, b, &options, &error); }), stfs_diff_close);
  if (PyErr_Occurred() != nullptr) return nullptr;  // of progress, or of a signal's handler
  if (!diff) return raise(error);
  const Object rows(
      list_of(stfs_diff_count(diff.get()), [&](std::uint64_t at) { return row_of(diff.get(), at); }));
  const Object entries(list_of(stfs_diff_metadata_count(diff.get()),
                               [&](std::uint64_t at) { return entry_of(diff.get(), at); }));
  if (!rows || !entries) return nullptr;
  return Py_BuildValue("(KOO)", static_cast<unsigned long long>(stfs_diff_compared_count(diff.get())),
                       rows.get(), entries.get());
}

}  // namespace stfs::python
