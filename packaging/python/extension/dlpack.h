// A tensor for whoever speaks DLPack: PyTorch, NumPy, JAX, CuPy, ...
#pragma once

#include <cstdint>
#include <optional>

#include "packaging/python/extension/python.h"
#include "tools/libstfs/stfs.h"

namespace stfs::python {

struct DlpackRequest {
  /// Of the consumer's DLPack; none: it does not know versions, nor that memory may be read-only.
  std::optional<std::uint32_t> major_version;
  std::uint32_t minor_version = 0;
  /// True: must copy. False: must not. None: may.
  std::optional<bool> copy;
};

/// A new capsule that keeps the tensor's data as long as the consumer needs them.
///
/// A consumer without versions takes all memory for writable. It gets a tensor of which it may write to each
/// byte without changing the archive or what anybody else was handed: pages are copied when they are written
/// to.
/// @return null with BufferError where that can't be had, or with the error of reading the tensor.
PyObject* make_capsule(const stfs_tensor& tensor, const DlpackRequest& request);

}  // namespace stfs::python
