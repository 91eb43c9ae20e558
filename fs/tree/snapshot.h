// One version of a mounted model: the model, and the names that the mount shows for it.
//
// An edit through the mount changes the set of tensors and their places. It makes the next snapshot, which
// replaces the present one at once. A call that has begun earlier may still use the old snapshot. Therefore
// each call first pins the present snapshot: the pin keeps that snapshot and all later ones.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "core/base/mutex.h"
#include "core/model/model.h"
#include "fs/tree/inode_table.h"
#include "fs/tree/view_names.h"

namespace stfs {

/// Immutable: any thread may read. Tables that few mounts need are built on first use.
class Snapshot {
 public:
  Snapshot(std::shared_ptr<const Model> of, Layout layout);
  /// A snapshot that follows an earlier one, with layout=tree.
  Snapshot(std::shared_ptr<const Model> of, DirectoryNumbers& numbers);

  const std::shared_ptr<const Model> model;
  const InodeTable table;  // the tree of tensors
  /// The tensors' names in one directory, in any layout.
  [[nodiscard]] const InodeTable& flat() const;
  const ViewNames view_names{*this};

  /// Ends a hold. The last end frees the snapshot.
  struct LetGo {
    void operator()(const Snapshot* held) const noexcept;
  };
  using Pin = std::unique_ptr<const Snapshot, LetGo>;

 private:
  friend class Snapshots;
  const bool is_flat_;
  mutable std::once_flag has_flat_;
  mutable std::unique_ptr<InodeTable> own_flat_;
  // Each call changes the count, so it is far from the members that each call reads.
  mutable std::atomic<std::uint64_t> holders_ = 1;
  mutable std::atomic<bool> is_oldest_ = true;
  mutable Pin next_;  // set when the snapshot is replaced
};

/// The present snapshot. Any thread may read and pin; one thread at a time replaces.
class Snapshots {
 public:
  explicit Snapshots(std::unique_ptr<const Snapshot> first) : present_(first.release()) {}
  ~Snapshots() { Snapshot::LetGo()(present_); }
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  /// The present snapshot. It stays valid while the caller holds a pin from before this call.
  const Snapshot* operator->() const { return present_.load(std::memory_order_acquire); }
  const Snapshot& operator*() const { return *present_.load(std::memory_order_acquire); }

  /// The caller holds the pin for the length of a call.
  [[nodiscard]] Snapshot::Pin pin() const {
    const MutexLock lock(mutex_);
    (*this)->holders_.fetch_add(1, std::memory_order_relaxed);
    return Snapshot::Pin(&**this);
  }
  void replace(std::unique_ptr<const Snapshot> next) noexcept;
  /// True if all calls that began before the last replacement have ended.
  [[nodiscard]] bool have_earlier_calls_ended() const { return (*this)->is_oldest_; }

 private:
  static constexpr std::size_t kCacheLineBytes = 64;

  std::atomic<const Snapshot*> present_;
  // Held while a pin is counted, so that the snapshot is not replaced and freed. The mutex has another cache
  // line, because calls read present_ more often than they pin.
  alignas(kCacheLineBytes) mutable Mutex mutex_;  // innermost
};

}  // namespace stfs
