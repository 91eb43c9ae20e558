// The generations and times of a mount's tensors.
#pragma once

#include <time.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/model/model.h"
#include "fs/tree/snapshot.h"

namespace stfs {

/// Nanoseconds since 1970.
struct timespec timespec_of(std::int64_t ns);
std::int64_t ns_of(struct timespec time);

/// Any thread may call. No other lock is taken while its mutex is held.
class TensorStates {
 public:
  struct State {
    /// Grows with each change of the tensor's bytes, also over several mounts. After each change it is larger
    /// than all generations that other tensors had before.
    std::uint64_t generation = 0;
    /// The generation of the last noted change. The generation also grows while bytes may be changing
    /// (note_unsettled()).
    std::uint64_t noted = 0;
    struct timespec mtime {};
  };

  /// @param snapshots         must outlive this object.
  /// @param least_generation  no tensor begins with a lower generation.
  TensorStates(const Snapshots& snapshots, std::uint64_t least_generation);

  [[nodiscard]] State of(TensorId tensor) const;
  /// At least as large as the newest generation of all tensors. Each later change gets a larger generation.
  [[nodiscard]] std::uint64_t newest_generation() const;
  /// The first value of newest_generation(). Smaller generations were given by other objects, so this object
  /// does not know whether a tensor has changed since a smaller generation.
  [[nodiscard]] std::uint64_t first_generation() const { return first_; }

  /// Notes a commit to the tensor.
  /// @param kept  the time to show instead of the archive's time.
  void note_commit(TensorId tensor, std::int64_t mtime_ns, const std::optional<struct timespec>& kept);
  /// Notes that another program has changed bytes of the shard.
  void note_foreign_change(std::uint32_t shard, std::int64_t mtime_ns);
  /// Gives all tensors of the shard a new generation, because their bytes may be changing right now.
  void note_unsettled(std::uint32_t shard);
  void set_mtime(TensorId tensor, struct timespec mtime);

 private:
  [[nodiscard]] State& changed(TensorId tensor) REQUIRES(mutex_);
  /// The generation of a change that was made at this time.
  [[nodiscard]] std::uint64_t next_generation(std::int64_t mtime_ns) REQUIRES(mutex_);

  const Snapshots& snapshots_;
  std::uint64_t first_ = 0;
  mutable Mutex mutex_;
  std::uint64_t newest_ GUARDED_BY(mutex_) = 0;
  std::vector<State> of_shards_ GUARDED_BY(mutex_);  // state of all tensors that no commit has changed
  std::unordered_map<TensorId, State> of_tensors_ GUARDED_BY(mutex_);
};

}  // namespace stfs
