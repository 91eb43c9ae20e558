// Bytes that a program writes and that are not staged for a tensor's place: the bytes of a new tensor
// (new_tensor.h) or of a whole checkpoint (checkpoint.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "fs/base/user_counts.h"

namespace stfs {

class Checkpoint;
class NewTensor;

/// The owner serializes the calls.
class PendingBytes {
 public:
  PendingBytes() = default;
  virtual ~PendingBytes() = default;
  PendingBytes(const PendingBytes&) = delete;
  PendingBytes& operator=(const PendingBytes&) = delete;

  /// At most one of these is not null.
  virtual NewTensor* new_tensor() { return nullptr; }
  virtual Checkpoint* checkpoint() { return nullptr; }
  /// A label for messages: "tensor "NAME"".
  [[nodiscard]] virtual std::string label() const = 0;

  virtual Result<void> write(std::span<const std::byte> from, std::uint64_t offset) = 0;
  virtual Result<void> resize(std::uint64_t size_bytes) = 0;
  /// The range must end at or before size_bytes().
  virtual Result<void> read(std::span<std::byte> to, std::uint64_t offset) const = 0;
  [[nodiscard]] virtual std::uint64_t size_bytes() const = 0;
  /// True if bytes have arrived that are not committed.
  [[nodiscard]] virtual bool is_dirty() const = 0;
  /// EINVAL, with the reason, if the bytes can't be committed.
  [[nodiscard]] virtual Result<void> check() const = 0;
  virtual void note_committed() = 0;
  /// True if a rename commits it, to a name that it can have.
  [[nodiscard]] virtual bool waits_for_name() const { return false; }
  /// Keeps whole content until it is renamed. The content is not dirty any more.
  virtual void keep() { is_kept_ = true; }
  [[nodiscard]] bool is_kept() const { return is_kept_; }
  /// Call when no descriptor is left.
  virtual void note_end() {}
  /// Drops the bytes.
  virtual void forget() = 0;
  /// Counts this object for its user until its end.
  void count_for(UserCounts::Share share) { user_share_ = std::move(share); }

 protected:
  bool is_kept_ = false;

 private:
  UserCounts::Share user_share_;
};

}  // namespace stfs
