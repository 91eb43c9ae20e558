// Gives a tensor to consumers of DLPack: PyTorch, NumPy, JAX, CuPy and others.
#pragma once

#include <cstdint>
#include <optional>

#include "packaging/python/extension/python.h"

namespace stfs::python {

struct DlpackRequest {
  /// The version of the consumer's DLPack. Nothing for a consumer before 1.0, which has no versions and no
  /// read-only flag.
  std::optional<std::uint32_t> major_version;
  std::uint32_t minor_version = 0;
  /// True: must copy. False: must not copy. Nothing: may copy.
  std::optional<bool> copy;
};

/// Returns a new capsule that keeps the tensor's data as long as the consumer needs them.
///
/// A consumer without versions treats all memory as writable. The capsule then has separate memory, whose
/// pages are copied on write. A write changes neither the archive nor the memory of another consumer.
/// @return null with BufferError if this is impossible, or with the error of reading the tensor.
PyObject* make_capsule(const stfs_tensor& tensor, const DlpackRequest& request);

}  // namespace stfs::python
