// Reads tensors as bytes: ranges for replies and views, and checksums. During a commit, all bytes of one call
// are old bytes, or all are new bytes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/archive/slice_reader.h"
#include "core/base/mutex.h"
#include "core/base/reader_writer_lock.h"
#include "core/model/model.h"
#include "fs/read/recent_reads.h"
#include "fs/read/tensor_states.h"
#include "fs/tree/bytes.h"
#include "fs/tree/snapshot.h"

namespace stfs {

/// Any thread may call. A shard is broken if another program has changed its header, or if the shard is the
/// base of a delta and another program has changed its bytes. Reads of a broken shard fail with EIO, except
/// reads of tensors that the new header leaves in their places.
class TensorReader {
 public:
  /// Snapshots and states must outlive this object.
  /// @param fails_on_change  if true, reads fail with ESTALE once another program has written to the tensor's
  ///                         shard after the model was opened. Then the model must be settled
  ///                         (core/model/settled_model.h), and this process must not write to it.
  TensorReader(const Snapshots& snapshots, const TensorStates& states, bool fails_on_change);

  /// Returns a range of a tensor for a reply. The reply refers to the map if there is one, and then holds the
  /// tensor's lock. The range must be inside the tensor.
  [[nodiscard]] Result<Bytes> read(TensorId tensor, ByteRange part) const;
  /// Copies bytes of the tensor, from `offset`.
  [[nodiscard]] Result<void> copy(TensorId tensor, std::uint64_t offset, std::span<std::byte> to) const;
  /// Reads several ranges of a tensor. All of them come from the same state of the tensor.
  [[nodiscard]] Result<void> read_parts(
      TensorId tensor, const std::function<Result<void>(const TensorBytes& tensor)>& work) const;
  /// Returns a range of the archive's header. The range begins at the beginning of the file.
  [[nodiscard]] Result<std::vector<std::byte>> read_header(ByteRange range) const;
  /// Computes the checksum in pieces and without a lock, so that commits can run during the computation, even
  /// commits of this tensor. EBUSY if the tensor keeps changing; EINTR if no caller waits for the checksum
  /// any more (cancellation.h).
  [[nodiscard]] Result<std::string> checksum(TensorId tensor) const;

  /// The last reads of programs. read() adds each call. A caller of another function adds the bytes that it
  /// returns to a program.
  [[nodiscard]] const RecentReads& recent_reads() const { return recent_reads_; }

  /// The lock that readers of a tensor hold. A commit takes it exclusively for two moments. If there are many
  /// tensors, some of them share a lock.
  [[nodiscard]] ReaderWriterLock& lock_of(TensorPlace place) const {
    return locks_[(place.shard + number_of(place.tensor)) % locks_.size()];
  }
  /// Waits until all readers that hold a tensor's lock now have released it.
  void wait_for_readers() const;
  /// "ARCHIVE: tensor "NAME"", for messages.
  [[nodiscard]] std::string label_of(TensorId tensor) const;

  /// Notes that another program has written to a shard whose reads fail on changes. @return false if this was
  /// already known.
  bool note_changed(std::uint32_t shard) const { return !is_changed_[shard].exchange(true); }
  [[nodiscard]] bool is_any_changed() const {
    return std::ranges::any_of(is_changed_, [](const auto& shard) { return shard.load(); });
  }
  /// Notes that a shard is broken. @return false if this was already known.
  /// @param present  the shard's present header. Null if no tensor of the shard can be read any more, even if
  ///                 a later header is valid.
  bool note_broken(std::uint32_t shard, std::shared_ptr<const ArchiveHeader> present = nullptr);
  [[nodiscard]] bool is_broken(std::uint32_t shard) const { return is_broken_[shard]; }
  [[nodiscard]] bool is_any_broken() const { return is_any_broken_; }

 private:
  static constexpr std::size_t kMostLocks = 1024;

  /// Changes whenever a tensor's bytes change. The generation changes with the changes by other programs. The
  /// turns of the tensor's lock change with commits of this mount, because these commits change the
  /// generation only after the bytes. Other tensors with the same lock also change the turns.
  struct ContentState {
    std::uint64_t generation = 0;
    std::uint64_t turns = 0;
    friend bool operator==(const ContentState&, const ContentState&) = default;
  };
  [[nodiscard]] ContentState content_state(TensorId tensor) const;
  /// The place of a tensor's bytes. The place is valid while the tensor's lock is held, and longer if no edit
  /// moves the tensor.
  struct Found {
    const ArchiveReader* archive = nullptr;
    ByteRange range;  // absolute
    std::uint32_t shard = 0;
    std::shared_lock<ReaderWriterLock> lock;
  };
  /// Takes the tensor's lock. EIO if its shard is broken and the tensor is not in its old place.
  [[nodiscard]] Result<Found> find(TensorId tensor) const;
  /// True if the header that has broken a shard leaves this tensor in its old place.
  [[nodiscard]] bool is_kept(const Model& model, TensorId tensor, std::uint32_t shard) const;
  /// Call with bytes that were read. ESTALE if the bytes may be of another version, and reads fail on
  /// changes.
  [[nodiscard]] Result<void> check_unchanged(std::uint32_t shard) const;
  /// @return nothing if the tensor has changed during the computation.
  [[nodiscard]] Result<std::optional<std::string>> try_checksum(TensorId tensor) const;

  const Snapshots& snapshots_;
  const RecentReads recent_reads_;
  const TensorStates& states_;
  mutable std::vector<ReaderWriterLock> locks_;  // one for each tensor, if there are not too many
  std::vector<std::atomic<bool>> is_broken_;     // by shard
  std::atomic<bool> is_any_broken_ = false;
  const bool fails_on_change_;
  mutable std::vector<std::atomic<bool>> is_changed_;  // by shard; empty unless reads fail on changes
  struct KnownChecksum {
    ContentState state;
    std::string text;
  };
  mutable Mutex mutex_;  // no other lock is taken while it is held
  mutable std::unordered_map<TensorId, KnownChecksum> checksums_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const ArchiveHeader>> present_
      GUARDED_BY(mutex_);  // by shard; null if it is not broken
};

}  // namespace stfs
