// Logs the commits of several concurrent writers of an archive, and checks whether they explain a content.
//
// A content is right if all commits that were done have one order that explains every slot (each has the
// bytes of its last writer in the order), keeps commits whole, and agrees with the clock: the order has a
// commit that had returned before another one that began later.
//
// A commit with durability=process is promised only until a loss of power. After that, each of its slots is
// separate, and may be torn until a later commit that survives a loss of power has written it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/crash/workload.h"

namespace stfs::test {

/// Disjoint runs of bytes of the small archive, some of them in one block or one tensor.
const std::vector<Piece>& slots();
/// The slot's place in the archive's file.
ByteRange bytes_of(const Piece& slot);

struct LoggedCommit {
  enum class Fate : std::uint8_t {
    Done,     // returned success
    Refused,  // returned an error that means that nothing was done
    Unknown,  // still running, or its process was killed
  };
  std::vector<std::size_t> slots;
  Fate fate = Fate::Unknown;
  std::uint64_t begin = 0;
  std::uint64_t end = UINT64_MAX;
  Durability durability = Durability::Power;
  /// A loss of power came after a commit that need not survive it. Each slot may be there, missing or torn,
  /// except for the safe slots.
  bool is_at_risk = false;
  std::vector<std::size_t> safe_slots = {};  // were on the disk before the loss of power
};

/// A value, so a copy can be kept with an image of the disk.
class CommitLog {
 public:
  /// @return the commit's number; Writer writes the bytes of this number.
  std::size_t begin(std::vector<std::size_t> slots, Durability durability = Durability::Power);
  void end(std::size_t number, LoggedCommit::Fate fate);
  /// Logs a loss of power, which ends all processes.
  /// @param content  of the archive before the loss.
  /// @param settled  slots whose bytes in `content` were on the disk, so they must stay.
  void lose_power(const Content& content, const std::vector<std::size_t>& settled);
  [[nodiscard]] std::optional<std::string> explain(const Content& content) const;

 private:
  /// A unit that is done as a whole or not at all: a commit, or one slot of a commit at risk.
  struct Node {
    std::size_t commit;
    std::vector<std::size_t> slots;
    bool is_due;  // its bytes must be there, unless a later node has overwritten them
  };
  /// For each slot the node whose bytes it has; nothing for bytes that are torn, and may be.
  using Shown = std::vector<std::optional<std::size_t>>;

  [[nodiscard]] std::optional<std::size_t> writer_of(std::size_t slot, const Content& content) const;
  [[nodiscard]] std::vector<Node> nodes() const;
  [[nodiscard]] bool comes_before(const std::vector<Node>& nodes, std::size_t one, std::size_t other,
                                  const Shown& shown) const;
  [[nodiscard]] bool may_be_torn(const std::vector<Node>& nodes, std::size_t slot) const;

  std::vector<LoggedCommit> commits_ = {
      {.slots = {}, .fate = LoggedCommit::Fate::Done, .begin = 0, .end = 0}};
  std::uint64_t clock_ = 0;
};

}  // namespace stfs::test
