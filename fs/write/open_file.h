// The kinds of open descriptors on a tensor, and the pending content of the descriptors that write.
//
//   Reader    O_RDONLY             It has no state; its reads come from the archive.
//   Isolated  O_WRONLY             It has pending content of its own and bypasses the page cache, so no other
//                                  process sees the content before the commit.
//   Shared    O_RDWR               All O_RDWR descriptors of the tensor share one pending content, since they
//                                  share the kernel's page cache with each other and with its readers.
//   New       a file that is no tensor yet   All descriptors share one pending content (new_tensor.h).
//   Grouped   in a transaction's   All descriptors of that file share one pending content. It is committed
//             directory            only with the directory.
//
// States of pending content:
//
//   clean -> dirty            write, resize
//   dirty -> clean            close or fsync: committed
//   clean or dirty -> failed  a write was refused, or the writer was killed: the bytes are dropped, and every
//                             later call fails with the reason
#pragma once

#include <sys/types.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "core/base/error.h"
#include "core/commit/transaction.h"
#include "core/model/model.h"
#include "core/model/transaction_group.h"
#include "fs/base/user_counts.h"
#include "fs/base/versioned.h"
#include "fs/tree/inode_table.h"
#include "fs/write/committers.h"
#include "fs/write/content_lock.h"
#include "fs/write/new_tensor.h"
#include "fs/write/writers.h"

namespace stfs {

enum class FileKind : std::uint8_t { Reader, Isolated, Shared, Grouped, New };

class PendingContent {
 public:
  /// @param model   must outlive the content.
  /// @param group   the group to stage in. Null: each commit is a transaction of its own.
  PendingContent(const Versioned<Model>& model, TensorId tensor,
                 std::shared_ptr<TransactionGroup> group = nullptr)
      : tensor_(tensor),
        model_(model),
        tensor_bytes_(model->tensor(tensor).data.size_bytes),
        shown_size_bytes_(tensor_bytes_),
        is_grouped_(group != nullptr),
        group_(std::move(group)) {}

  /// Makes the content of a tensor that the model does not have.
  PendingContent(const Versioned<Model>& model, TensorId tensor, std::unique_ptr<NewContent> made)
      : tensor_(tensor),
        model_(model),
        tensor_bytes_(0),
        shown_size_bytes_(0),
        is_grouped_(false),
        owned_(std::move(made)),
        made_(owned_.get()) {}

  [[nodiscard]] TensorId tensor() const { return tensor_; }
  /// What is being made; null for the content of a tensor of the model.
  [[nodiscard]] NewContent* made() const { return made_; }
  /// Makes this the content of a tensor that gets another size, dtype or shape. Only while no byte is staged.
  void remake(std::unique_ptr<NewContent> made);
  /// A new file was deleted before it became a tensor: nothing is committed.
  std::atomic<bool> is_unlinked = false;
  /// The process that opened the only descriptor has closed it after it was written. Guarded by the mutex.
  bool is_closed = false;
  /// The number of descriptors that share this content; guarded by the mutex of OpenFiles.
  std::atomic<unsigned> descriptors = 0;

  /// Guards what follows. Taken before a shard's turn and the tensor's lock (filesystem.h).
  ContentLock mutex;
  std::optional<Error> failure;
  std::atomic<bool> has_failed = false;  // true if failure is set; may be read without the mutex
  Writers writers;
  /// The last close or sync of exactly these bytes failed, and its caller knows that they are lost.
  bool was_refused = false;

  /// utimensat(2) has set mtime after the last write; the commit keeps this time. The mutex of OpenFiles
  /// guards mtime.
  std::atomic<bool> keeps_mtime = false;
  struct timespec mtime {};

  // As Staging's. The first write begins a stage, so that an open that writes nothing costs nothing.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset);
  Result<void> resize(std::uint64_t size_bytes);
  Result<void> read(std::span<std::byte> to, std::uint64_t offset, const Staging::ReadBase& read_base);

  /// Returns the stage, and begins one if there is none. Not for a new tensor.
  Result<Staging*> stage();
  /// Whether the stage is of a tensor of the base of a delta (TransactionGroup::stage()).
  [[nodiscard]] bool is_copy() const { return is_copy_; }
  /// Whether something is staged, or is being committed. Needs no mutex.
  [[nodiscard]] bool has_stage() const { return has_stage_; }
  /// The stage, or null while nothing is pending.
  [[nodiscard]] Staging* staged() const { return staged_; }
  [[nodiscard]] std::uint64_t size_bytes() const {
    return made() ? made()->size_bytes() : staged_ ? staged_->size_bytes() : tensor_bytes_;
  }
  /// The size at the last call of show_size(). Needs no mutex.
  [[nodiscard]] std::uint64_t shown_size_bytes() const { return shown_size_bytes_; }
  void show_size() { shown_size_bytes_ = size_bytes(); }
  [[nodiscard]] bool is_dirty() const {
    return made() ? made()->is_dirty() && !is_unlinked : staged_ != nullptr && staged_->is_dirty();
  }
  [[nodiscard]] bool is_whole() const {
    return made() ? made()->check().has_value() : staged_ == nullptr || staged_->is_whole();
  }

  // A commit of content that belongs to no transaction's directory: complete(), attempts to commit(),
  // end_commit(). Between the first and the last, readers may enter (admitted_readers.h), so they wait
  // neither for the disk nor for another process's lock.
  /// Completes the stage, which then stays as it is until end_commit(). @return what the commit changes, in
  /// the shard of the stage.
  Result<Committers::Patch> complete();
  [[nodiscard]] std::uint32_t shard() const { return staged_place_.shard; }
  /// One attempt, with the shard's turn. Sends the readers out before it ends the stage.
  Result<void> commit(const TransactionGroup::OptionsOf& options_of, const TransactionGroup::LockOf& lock_of);
  /// After success nothing is pending. After a failure everything is still pending. The exception is a
  /// failure behind the commit point: the bytes are in the journal, and the content ends as in end().
  void end_commit(const Result<void>& done);
  /// Hides the stage while the group commits, because the commit ends the stage. Meanwhile the content reads
  /// as the archive's. unpark() brings the stage back after a refused commit.
  void park();
  void unpark();
  /// Drops what is staged: the content is the archive's again.
  void forget();
  /// Makes every later call fail with this error. The stage stays until fail(), since other threads may use
  /// it.
  void note_failure(Error why);
  /// Drops what is staged, and makes every later call fail with this error.
  void fail(Error why);

  /// As fail(), for a commit that has already ended the stage.
  void end(Error why);
  /// Clears the failure, so that the writer may begin again.
  void retry();

  /// Call before new bytes are staged.
  void note_write(Caller caller);
  /// Call when what is being made was committed, or staged in a transaction.
  void note_committed();
  /// Accepts the pending bytes as they are: their writers no longer answer for them.
  void accept() { writers.clear(); }

 private:
  const uid_t user_ = requesting_user();  // who has opened it first
  const TensorId tensor_;
  const Versioned<Model>& model_;
  const std::uint64_t tensor_bytes_;
  std::atomic<std::uint64_t> shown_size_bytes_;
  const bool is_grouped_;
  std::unique_ptr<NewContent> owned_;
  std::atomic<NewContent*> made_ = nullptr;  // to owned_; may be read without the mutex
  std::shared_ptr<TransactionGroup> group_;
  Staging* staged_ = nullptr;
  TensorPlace staged_place_;  // the tensor's when the stage began: an edit may move it from a base to a delta
  bool is_copy_ = false;
  std::atomic<bool> has_stage_ = false;
  Staging* parked_ = nullptr;
};

struct OpenFile {
  Ino ino = 0;
  FileKind kind = FileKind::Reader;
  bool appends = false;                     // O_APPEND
  bool is_synchronous = false;              // O_SYNC or O_DSYNC
  std::shared_ptr<PendingContent> content;  // null for a Reader

  const uid_t user = requesting_user();  // who has opened it
  // For open(2) with O_TRUNC the kernel sends the truncation as a request of its own that names no
  // descriptor. It belongs to the newest untouched descriptor that the same thread has opened.
  pid_t opener = 0;  // thread; 0 if it lives in another pid namespace
  pid_t opener_process = 0;
  std::uint64_t opened_at = 0;  // the number of this open, counted from the mount's first
  std::atomic<bool> is_untouched = true;
  bool opener_has_closed = false;                // guarded by the content's mutex
  std::atomic<bool> opener_has_flushed = false;  // it has closed at least one copy
};

/// True if writes through this descriptor go through the inode's page cache, where all descriptors of the
/// file see them.
inline bool is_in_page_cache(const OpenFile& file) {
  return file.kind == FileKind::Shared || file.kind == FileKind::Grouped;
}

}  // namespace stfs
