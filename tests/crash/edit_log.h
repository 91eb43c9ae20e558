// What was tried on a model by several users at a time, and which contents can have come of it.
//
// The log keeps all models that the transactions so far allow. A transaction that was begun may be done at
// any time until it has ended, and only on the structure that it was made for: an edit in between refuses it.
// One that returned success is done. One that was killed may be done as well as not, until a later one that
// began after its death has committed to a shard of it: that one has recovered it, or found nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "tests/crash/model_step.h"

namespace stfs::test {

/// A value, so that one can be kept with an image of the disk.
class EditLog {
 public:
  enum class Fate : std::uint8_t {
    Done,     // returned success
    Refused,  // returned an error that means that nothing was done
    Unknown,  // its process was killed
  };

  explicit EditLog(EditedModel first);

  /// @return its number.
  std::size_t begin(ModelStep step);
  void end(std::size_t number, Fate fate);

  [[nodiscard]] const std::set<std::size_t>& dead() const { return dead_; }
  /// Whoever died before has been recovered, or has left nothing: somebody has opened the model for writing.
  /// @param dead  dead() before that began.
  void settle(const std::set<std::size_t>& dead);

  /// All contents that are allowed now. None: a success can't be explained.
  [[nodiscard]] std::vector<EditedModel> allowed() const;
  /// What a reader without journals may find in a shard besides allowed(): a dead transaction over several
  /// shards is committed in all of them, and each shard keeps its old content until it is recovered itself.
  /// Nobody does that for a shard that the index does not name any more.
  [[nodiscard]] const std::vector<EditedModel>& former() const { return former_; }
  /// Whether such a reader may find a mix of old and new bytes in this shard, because a patch was on its way.
  [[nodiscard]] bool is_patched(std::uint32_t shard) const;

 private:
  struct World {
    EditedModel content;
    std::set<std::size_t> waiting;  // begun, and not done here
    std::uint64_t hash = 0;         // of the content
    friend bool operator==(const World& one, const World& other) {
      return one.hash == other.hash && one.waiting == other.waiting && one.content == other.content;
    }
  };
  struct Begun {
    std::shared_ptr<const ModelStep> step;
    std::set<std::size_t> dead_before;
  };
  /// All worlds that follow, the present ones first.
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
