// What a descriptor on a tensor stands for, and the pending content behind it.
//
//   Reader    O_RDONLY             no state; reads come from the archive
//   Isolated  O_WRONLY             pending content of its own, past the page cache: nobody else sees it
//   Shared    O_RDWR               pending content that all O_RDWR descriptors of the tensor share, since
//                                  they share the kernel's page cache, as do the readers of the tensor
//   Grouped   in a transaction's   pending content that all descriptors of that file share; nothing is
//             directory            committed before the directory is
//
// Pending content goes  clean -> dirty (write, resize) -> committed = clean (close, fsync),
//                       or any -> failed (a write was refused, the writer was killed): rolled back, and
//                       every later call says why.
#pragma once

#include <sys/types.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "core/base/error.h"
#include "core/commit/transaction.h"
#include "core/model/model.h"
#include "core/model/transaction_group.h"
#include "fs/tree/inode_table.h"
#include "fs/write/content_lock.h"
#include "fs/write/writers.h"

namespace stfs {

enum class FileKind : std::uint8_t { Reader, Isolated, Shared, Grouped };

class PendingContent {
 public:
  /// @param tensor  its position in the model, which must outlive the content.
  /// @param group  what to stage in; null: a transaction of its own for each commit.
  PendingContent(const Model& model, std::uint32_t tensor, std::shared_ptr<TransactionGroup> group = nullptr)
      : tensor_(tensor),
        model_(model),
        tensor_bytes_(model.tensors()[tensor].data.size_bytes),
        shown_size_bytes_(tensor_bytes_),
        is_grouped_(group != nullptr),
        group_(std::move(group)) {}

  [[nodiscard]] std::uint32_t tensor() const { return tensor_; }
  /// Descriptors that share this; guarded by the file system's state mutex.
  unsigned descriptors = 0;

  /// Guards what follows. Taken before the commit lock and the tensor's lock (filesystem.h).
  ContentLock mutex;
  std::optional<Error> failure;
  std::atomic<bool> has_failed = false;  // the same, for a look without the mutex
  Writers writers;
  /// The last close or sync of exactly these bytes failed: its caller has been told that they are lost.
  bool was_refused = false;

  /// Set by utimensat(2) after the last write: the commit keeps it. The time is guarded by the state mutex.
  std::atomic<bool> keeps_mtime = false;
  struct timespec mtime {};

  /// The stage, begun with the first write: an open that writes nothing costs nothing.
  Result<Staging*> stage();
  /// Null while nothing is pending.
  [[nodiscard]] Staging* staged() const { return staged_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return staged_ ? staged_->size_bytes() : tensor_bytes_; }
  /// The same, without the mutex: the size after the last change that was made known by show_size().
  [[nodiscard]] std::uint64_t shown_size_bytes() const { return shown_size_bytes_; }
  void show_size() { shown_size_bytes_ = size_bytes(); }
  [[nodiscard]] bool is_dirty() const { return staged_ != nullptr && staged_->is_dirty(); }
  [[nodiscard]] bool is_whole() const { return staged_ == nullptr || staged_->is_whole(); }

  /// Of content on its own. After success nothing is pending; after a failure all of it still is. Readers
  /// come in beside it: they wait neither for the disk nor for another process's lock.
  Result<void> commit(const TransactionGroup::OptionsOf& options_of, const TransactionGroup::LockOf& lock_of,
                      const TransactionGroup::InTurn& in_turn);
  /// Takes the stage out of sight while the group commits, which ends the stage; meanwhile the content reads
  /// as the archive's. unpark() brings it back after a refusal.
  void park();
  void unpark();
  /// Back to what the archive holds.
  void forget();
  /// From now on every later call gives this error. What is staged stays until fail(): others may be at it.
  void note_failure(Error why);
  /// Back to what the archive holds, for good: every later call gives this error.
  void fail(Error why);

  /// As fail(), where the commit has taken the stage away already.
  void end(Error why);
  /// Takes the failure back: the writer begins again.
  void retry();

  /// Before new bytes are staged.
  void note_write(Caller caller);
  /// What is pending is accepted as it is; those who wrote it answer for it no longer.
  void accept() { writers.clear(); }

 private:
  const std::uint32_t tensor_;
  const Model& model_;
  const std::uint64_t tensor_bytes_;
  std::atomic<std::uint64_t> shown_size_bytes_;
  const bool is_grouped_;
  std::shared_ptr<TransactionGroup> group_;
  Staging* staged_ = nullptr;
  Staging* parked_ = nullptr;
};

struct OpenFile {
  Ino ino = 0;
  FileKind kind = FileKind::Reader;
  bool appends = false;                     // O_APPEND
  bool is_synchronous = false;              // O_SYNC or O_DSYNC
  std::shared_ptr<PendingContent> content;  // null for a Reader

  // The truncation that open(2) with O_TRUNC asks for comes as a request of its own that names no
  // descriptor: it belongs to the newest untouched one that the same thread has opened.
  pid_t opener = 0;  // thread; 0 where it lives in another pid namespace
  pid_t opener_process = 0;
  std::uint64_t opened_at = 0;  // a count of opens
  std::atomic<bool> is_untouched = true;
  bool opener_has_closed = false;  // guarded by the content's mutex
};

/// What is written through it goes through the page cache of its inode, where all descriptors of the file see
/// it.
inline bool is_in_page_cache(const OpenFile& file) {
  return file.kind == FileKind::Shared || file.kind == FileKind::Grouped;
}

}  // namespace stfs
