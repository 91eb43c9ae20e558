// Logs the transactions of several concurrent users of a model, and computes the contents that they allow.
//
// The log keeps all models that the transactions so far allow. A begun transaction may be done at any time
// until it has ended, and only on the structure for which it was made: an edit in between makes it fail. A
// transaction that returned success is done. A killed transaction may be done or not, until a later
// transaction that began after the kill commits to one of its shards: the later transaction has recovered it,
// or found nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "tests/crash/model_step.h"

namespace stfs::test {

/// A value, so a copy can be kept with an image of the disk.
class EditLog {
 public:
  enum class Fate : std::uint8_t {
    Done,     // returned success
    Refused,  // returned an error that means that nothing was done
    Unknown,  // its process was killed
  };

  explicit EditLog(EditedModel first);

  /// @return the transaction's number.
  std::size_t begin(ModelStep step);
  void end(std::size_t number, Fate fate);

  [[nodiscard]] const std::set<std::size_t>& dead() const { return dead_; }
  /// A process has opened the model for writing, so the transactions of dead processes are recovered, or have
  /// left nothing.
  /// @param dead  dead() before the opening began.
  void settle(const std::set<std::size_t>& dead);

  /// All contents that are allowed now. Empty: no content explains a success.
  [[nodiscard]] std::vector<EditedModel> allowed() const;
  /// Contents of shards that a reader without journals may find in addition to allowed(). A dead transaction
  /// over several shards is committed in all of them, and each shard keeps its old content until it is
  /// recovered. A shard that the index no longer names may never be recovered.
  [[nodiscard]] const std::vector<EditedModel>& former() const { return former_; }
  /// Whether such a reader may find a mix of old and new bytes in this shard, because a patch was interrupted
  /// or is still running.
  [[nodiscard]] bool is_patched(std::uint32_t shard) const;

 private:
  struct World {
    EditedModel content;
    std::set<std::size_t> waiting;  // transactions that were begun, and are not done in this world
    std::uint64_t hash = 0;         // of the content
    friend bool operator==(const World& one, const World& other) {
      return one.hash == other.hash && one.waiting == other.waiting && one.content == other.content;
    }
  };
  struct Begun {
    std::shared_ptr<const ModelStep> step;
    std::set<std::size_t> dead_before;
  };
  /// The present worlds, then all worlds that follow from them.
  using MayBeDone = std::function<bool(std::size_t number)>;
  [[nodiscard]] std::vector<World> reachable(const MayBeDone& may_be_done) const;
  [[nodiscard]] bool share_shards(std::size_t one, std::size_t other) const;

  std::vector<World> worlds_;
  std::vector<Begun> begun_;
  std::set<std::size_t> dead_;
  std::vector<EditedModel> former_;
  std::set<std::uint32_t> torn_;  // shards that a dead patch over several shards names
};

}  // namespace stfs::test
