// Chooses the memory and the type that a consumer gets, and frees them afterwards.
#include "packaging/python/extension/dlpack.h"

#include <cstdlib>
#include <new>
#include <vector>

#include "packaging/python/extension/dlpack_format.h"
#include "packaging/python/extension/python_error.h"

namespace stfs::python {
namespace {

constexpr const char* kUnversionedName = "dltensor";
constexpr const char* kVersionedName = "dltensor_versioned";

struct CloseTensor {
  void operator()(stfs_tensor* tensor) const { stfs_tensor_close(tensor); }
};
using Handle = std::unique_ptr<stfs_tensor, CloseTensor>;

/// The structure of a capsule, and the memory that the structure points to. A consumer frees it on any
/// thread, perhaps after the end of the interpreter, so this must not use Python.
template <class Managed>
struct Loan {
  Managed managed{};
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  Handle handle;
};

template <class Managed>
void free_loan(Managed* managed) {
  delete static_cast<Loan<Managed>*>(managed->context);
}

/// Frees the structure if no consumer has taken it. A consumer renames the capsule.
template <class Managed>
void free_capsule(PyObject* capsule, const char* name) {
  if (!PyCapsule_IsValid(capsule, name)) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->free(managed);
}
extern "C" void free_unversioned_capsule(PyObject* capsule) {
  free_capsule<dlpack::Unversioned>(capsule, kUnversionedName);
}
extern "C" void free_versioned_capsule(PyObject* capsule) {
  free_capsule<dlpack::Versioned>(capsule, kVersionedName);
}

/// The code of a dtype in DLPack.
struct KnownType {
  std::uint8_t code;
  bool is_new;  // since DLPack 1.1
};
KnownType known_type(std::int32_t dtype) {
  switch (dtype) {
    case STFS_BOOL: return {dlpack::kBool, false};
    case STFS_F4: return {dlpack::kFloat4E2m1fn, true};
    case STFS_F6_E2M3: return {dlpack::kFloat6E2m3fn, true};
    case STFS_F6_E3M2: return {dlpack::kFloat6E3m2fn, true};
    case STFS_I8:
    case STFS_I16:
    case STFS_I32:
    case STFS_I64: return {dlpack::kInt, false};
    case STFS_F8_E5M2: return {dlpack::kFloat8E5m2, true};
    case STFS_F8_E4M3: return {dlpack::kFloat8E4m3fn, true};
    case STFS_F8_E8M0: return {dlpack::kFloat8E8m0fnu, true};
    case STFS_F8_E4M3FNUZ: return {dlpack::kFloat8E4m3fnuz, true};
    case STFS_F8_E5M2FNUZ: return {dlpack::kFloat8E5m2fnuz, true};
    case STFS_F16:
    case STFS_F32:
    case STFS_F64: return {dlpack::kFloat, false};
    case STFS_BF16: return {dlpack::kBfloat, false};
    case STFS_C64: return {dlpack::kComplex, false};
    default: return {dlpack::kUint, false};  // U8, U16, U32, U64
  }
}

class Lender {
 public:
  explicit Lender(const DlpackRequest& request) : request_(request) {}

  PyObject* lend(const stfs_tensor& tensor) {
    if (!choose_memory(tensor)) return nullptr;
    return is_versioned() ? versioned_capsule() : unversioned_capsule();
  }

 private:
  [[nodiscard]] bool is_versioned() const { return request_.major_version && *request_.major_version >= 1; }
  [[nodiscard]] bool knows_small_floats() const {
    return is_versioned() && (*request_.major_version > 1 || request_.minor_version >= 1);
  }
  [[nodiscard]] bool may_copy() const { return request_.copy.value_or(true); }

  bool choose_memory(const stfs_tensor& tensor) {
    stfs_error error;
    const bool has_to_copy = request_.copy.value_or(false);
    handle_.reset(without_python([&]() -> stfs_tensor* {
      if (has_to_copy) return stfs_tensor_copy(&tensor, &error);
      // Gather a slice before it is shared: all consumers then share the gathered bytes.
      if (stfs_tensor_data(&tensor, &error) == nullptr) return nullptr;
      return stfs_tensor_retain(&tensor, &error);
    }));
    if (!take(error)) return false;
    if (has_to_copy) flags_ |= dlpack::kIsCopied;
    if (!is_versioned() && !is_writable() && !make_private()) return false;
    return is_aligned() || copy_over("lies at an odd address in its file");
  }

  /// Prepares the memory for a consumer that treats it as writable.
  bool make_private() {
    if (info_.device_kind != STFS_CPU) {
      PyErr_SetString(
          PyExc_BufferError,
          "the tensor is read-only, and this consumer's DLPack (before 1.0) has no read-only flag");
      return false;
    }
    if (!replace(stfs_tensor_private)) return false;
    if (may_copy() || (info_.flags & STFS_MAPPED) != 0) return true;
    PyErr_SetString(PyExc_BufferError,
                    "the consumer's DLPack (before 1.0) has no read-only flag: "
                    "the tensor must be copied, and copy=False forbids it");
    return false;
  }

  bool copy_over(const char* why) {
    if (!may_copy()) {
      PyErr_Format(PyExc_BufferError, "the tensor %s: it must be copied, and copy=False forbids it", why);
      return false;
    }
    flags_ |= dlpack::kIsCopied;
    return replace(stfs_tensor_copy);
  }

  /// Replaces the handle by one that is made from it.
  bool replace(stfs_tensor* (*make)(const stfs_tensor*, stfs_error*)) {
    const Handle before = std::move(handle_);
    stfs_error error;
    handle_.reset(without_python([&] { return make(before.get(), &error); }));
    return take(error);
  }

  /// Describes the chosen handle. Raises the error if there is none.
  bool take(stfs_error& error) {
    info_ = empty<stfs_tensor_info>();
    if (handle_ && stfs_tensor_describe(handle_.get(), &info_, &error) == 0) {
      data_ = stfs_tensor_data(handle_.get(), &error);
      if (data_ != nullptr) return true;
    }
    raise(error);
    return false;
  }

  [[nodiscard]] bool is_writable() const { return (info_.flags & STFS_WRITABLE) != 0; }
  [[nodiscard]] bool is_aligned() const {
    const std::uint64_t element_bytes = stfs_dtype_bits(info_.dtype) / 8;
    return element_bytes < 2 || info_.device_kind != STFS_CPU || info_.size_bytes == 0 ||
           reinterpret_cast<std::uintptr_t>(data_) % element_bytes == 0;
  }

  /// Describes the elements as bytes if the consumer's version does not know the type. Elements of 8 bits
  /// keep their shape; smaller elements appear packed, in one dimension.
  template <class Managed>
  dlpack::Tensor describe(Loan<Managed>& loan) const {
    const std::uint32_t bits = stfs_dtype_bits(info_.dtype);
    KnownType type = known_type(info_.dtype);
    bool is_flat = false;
    if (type.is_new && !knows_small_floats()) {
      type.code = dlpack::kUint;
      is_flat = bits < 8;
    } else if (type.code == dlpack::kBool && !is_versioned()) {
      // Most consumers before DLPack 1.0 do not know booleans.
      type.code = dlpack::kUint;
    }
    if (is_flat) {
      loan.shape = {static_cast<std::int64_t>(info_.size_bytes)};
      loan.strides = {1};
    } else {
      loan.shape.assign(info_.shape, info_.shape + info_.rank);
      loan.strides.resize(info_.rank);
      std::int64_t packed = 1;
      for (std::size_t dimension = info_.rank; dimension-- > 0;) {
        loan.strides[dimension] =
            info_.strides_bytes != nullptr ? info_.strides_bytes[dimension] / (bits / 8) : packed;
        packed *= loan.shape[dimension];
      }
    }
    dlpack::Tensor tensor{};
    tensor.data = data_;
    tensor.device = {info_.device_kind == STFS_CPU ? dlpack::kCpu : dlpack::kCuda, info_.device_index};
    tensor.rank = static_cast<std::int32_t>(loan.shape.size());
    tensor.type = {type.code, static_cast<std::uint8_t>(is_flat ? 8 : bits), 1};
    tensor.shape = loan.shape.data();
    tensor.strides = loan.strides.data();
    return tensor;
  }

  template <class Managed>
  std::unique_ptr<Loan<Managed>> loan() {
    auto loan = std::make_unique<Loan<Managed>>();
    loan->managed.tensor = describe(*loan);
    loan->managed.context = loan.get();
    loan->managed.free = free_loan<Managed>;
    loan->handle = std::move(handle_);
    return loan;
  }

  PyObject* unversioned_capsule() {
    auto made = loan<dlpack::Unversioned>();
    PyObject* capsule = PyCapsule_New(&made->managed, kUnversionedName, free_unversioned_capsule);
    if (capsule != nullptr) static_cast<void>(made.release());
    return capsule;
  }

  PyObject* versioned_capsule() {
    auto made = loan<dlpack::Versioned>();
    made->managed.major = dlpack::kMajorVersion;
    made->managed.minor = knows_small_floats() ? dlpack::kMinorVersion : 0;
    made->managed.flags = flags_ | (is_writable() ? 0 : dlpack::kReadOnly);
    PyObject* capsule = PyCapsule_New(&made->managed, kVersionedName, free_versioned_capsule);
    if (capsule != nullptr) static_cast<void>(made.release());
    return capsule;
  }

  const DlpackRequest& request_;
  Handle handle_;
  stfs_tensor_info info_{};
  void* data_ = nullptr;
  std::uint64_t flags_ = 0;
};

}  // namespace

PyObject* make_capsule(const stfs_tensor& tensor, const DlpackRequest& request) {
  try {
    return Lender(request).lend(tensor);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

}  // namespace stfs::python
