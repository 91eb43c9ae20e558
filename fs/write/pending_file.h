// A file with written bytes that are not committed yet. The descriptors that write the file share one
// PendingFile (open_file.h calls it their `content`), with one lock and one failure. Its PendingBytes have
// the bytes. remake() gives the file PendingBytes of another kind, because the file gets another form.
//
// States of a pending file:
//
//   clean -> dirty            write, resize
//   dirty -> clean            close or fsync: committed
//   clean or dirty -> failed  a write was refused, or the writer was killed: the bytes are dropped, and every
//                             later call fails with the reason
#pragma once

#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/commit/staging.h"
#include "core/format/tensor_id.h"
#include "fs/base/user_counts.h"
#include "fs/write/content_lock.h"
#include "fs/write/new_tensor.h"
#include "fs/write/pending_bytes.h"
#include "fs/write/tensor_patch.h"
#include "fs/write/writers.h"

namespace stfs {

class PendingFile {
 public:
  PendingFile(TensorId tensor, std::unique_ptr<PendingBytes> bytes)
      : tensor_(tensor),
        first_(std::move(bytes)),
        bytes_(first_.get()),
        shown_size_bytes_(first_->size_bytes()) {}

  /// The id of the tensor of the model, or the id that the new file has got.
  [[nodiscard]] TensorId tensor() const { return tensor_; }
  // The bytes, as the subclass that they are; null for another one. Needs no mutex.
  [[nodiscard]] TensorPatch* patch() const { return bytes().patch(); }
  [[nodiscard]] NewTensor* new_tensor() const { return bytes().new_tensor(); }
  [[nodiscard]] Checkpoint* checkpoint() const { return bytes().checkpoint(); }
  [[nodiscard]] CheckpointIndex* checkpoint_index() const { return bytes().checkpoint_index(); }
  /// Drops a patch, and makes this the content of a tensor that gets another size, dtype or shape.
  void remake(std::unique_ptr<NewTensor> made);
  /// A label for messages: "tensor "NAME"".
  [[nodiscard]] std::string label() const { return bytes().label(); }
  /// True if a new file was deleted before it became a tensor. Then no bytes are committed.
  std::atomic<bool> is_unlinked = false;
  /// The process that opened the only descriptor has closed it after it was written. Guarded by the mutex.
  bool is_closed = false;
  /// The number of descriptors that share this file; guarded by the mutex of OpenFiles.
  std::atomic<unsigned> descriptors = 0;
  /// Counts this file for its user until its end. Call before other threads can reach the file.
  void count_for(UserCounts::Share share) { user_share_ = std::move(share); }

  /// Guards the members below. Taken before a shard's turn and the tensor's lock (mounted_model.h).
  ContentLock mutex;
  std::optional<Error> failure;
  std::atomic<bool> has_failed = false;  // true if failure is set; may be read without the mutex
  Writers writers;
  /// The last close or sync of exactly these bytes failed, and its caller knows that they are lost.
  bool was_refused = false;

  /// True if utimensat(2) has set mtime after the last write: the commit keeps this time. The mutex of
  /// OpenFiles guards mtime.
  std::atomic<bool> keeps_mtime = false;
  struct timespec mtime {};

  // These act as the functions of PendingBytes:
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset);
  Result<void> resize(std::uint64_t size_bytes);
  Result<void> read(std::span<std::byte> to, std::uint64_t offset, const Staging::ReadBase& read_base) const {
    return bytes().read(to, offset, read_base);
  }
  [[nodiscard]] std::uint64_t size_bytes() const { return bytes().size_bytes(); }
  [[nodiscard]] std::uint64_t mapped_bytes() const { return bytes().mapped_bytes(); }
  [[nodiscard]] bool is_dirty() const { return bytes().is_dirty() && !is_unlinked; }
  [[nodiscard]] Result<void> check() const { return bytes().check(); }
  [[nodiscard]] bool is_whole() const { return check().has_value(); }
  void note_committed();
  /// The file is clean then.
  void drop();

  /// True if bytes are pending or being committed. Needs no mutex.
  [[nodiscard]] bool has_bytes() const { return has_bytes_; }
  /// The size at the last call of show_size(). Needs no mutex.
  [[nodiscard]] std::uint64_t shown_size_bytes() const { return shown_size_bytes_; }
  void show_size() { shown_size_bytes_ = size_bytes(); }
  // TensorPatch::park(), unpark(), staged(). Other bytes have no stage.
  void park();
  void unpark();
  [[nodiscard]] Staging* staged() const { return patch() == nullptr ? nullptr : patch()->staged(); }

  /// Makes every later call fail with this error. The bytes stay until fail(), because other threads may be
  /// using them.
  void note_failure(Error why);
  /// Drops the bytes, and makes every later call fail with this error.
  void fail(Error why);
  /// Clears the failure, so that the writer may begin again.
  void retry();

  /// Call before new bytes are written.
  void note_write(Caller caller);
  /// Accepts the pending bytes: the end of a writer does not drop them any more.
  void accept() { writers.clear(); }

 private:
  [[nodiscard]] PendingBytes& bytes() const { return *bytes_; }
  /// Notes that no bytes are pending.
  void note_clean();

  const TensorId tensor_;
  // Threads without the mutex may still use the first bytes after remake(), so both live as long as the file.
  const std::unique_ptr<PendingBytes> first_;
  std::unique_ptr<PendingBytes> remade_;
  std::atomic<PendingBytes*> bytes_;
  std::atomic<std::uint64_t> shown_size_bytes_;
  std::atomic<bool> has_bytes_ = false;
  UserCounts::Share user_share_;
};

}  // namespace stfs
