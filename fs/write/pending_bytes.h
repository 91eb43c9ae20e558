// Bytes that a program has written and that are not committed yet. A PendingFile owns them. Each subclass has
// another place for the bytes, and another commit:
//
//   TensorPatch      new bytes for a tensor of the model, in its place (tensor_patch.h)
//   NewTensor        a tensor that the program makes, or gives another size (new_tensor.h)
//   Checkpoint       a whole checkpoint, compared with the model (checkpoint.h)
//   CheckpointIndex  the index of a checkpoint of several files (checkpoint_index.h)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/base/error.h"
#include "core/commit/staging.h"

namespace stfs {

class Checkpoint;
class CheckpointIndex;
class NewTensor;
class TensorPatch;

/// The owner serializes the calls. Any thread may ask for the subclass.
class PendingBytes {
 public:
  PendingBytes() = default;
  virtual ~PendingBytes() = default;
  PendingBytes(const PendingBytes&) = delete;
  PendingBytes& operator=(const PendingBytes&) = delete;

  /// Exactly one of these is not null.
  virtual TensorPatch* patch() { return nullptr; }
  virtual NewTensor* new_tensor() { return nullptr; }
  virtual Checkpoint* checkpoint() { return nullptr; }
  virtual CheckpointIndex* checkpoint_index() { return nullptr; }
  /// A label for messages: "tensor "NAME"".
  [[nodiscard]] virtual std::string label() const = 0;

  virtual Result<void> write(std::span<const std::byte> from, std::uint64_t offset) = 0;
  virtual Result<void> resize(std::uint64_t size_bytes) = 0;
  /// The range must end at or before size_bytes().
  /// @param read_base  reads the bytes of the tensor that a patch changes.
  virtual Result<void> read(std::span<std::byte> to, std::uint64_t offset,
                            const Staging::ReadBase& read_base) const = 0;
  [[nodiscard]] virtual std::uint64_t size_bytes() const = 0;
  /// The size to which pages of a mapping are cut before they are written.
  [[nodiscard]] virtual std::uint64_t mapped_bytes() const { return size_bytes(); }
  /// True if bytes have arrived that are not committed.
  [[nodiscard]] virtual bool is_dirty() const = 0;
  /// EINVAL, with the reason, if the bytes can't be committed.
  [[nodiscard]] virtual Result<void> check() const = 0;
  /// Call when the bytes were committed, or staged in a transaction.
  virtual void note_committed() = 0;
  /// Drops the bytes.
  virtual void drop() = 0;
};

}  // namespace stfs
