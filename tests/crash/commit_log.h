// What was tried on an archive by several writers at a time, and whether a content can have come of it.
//
// A content is right where all the transactions that were done can be put into one order that explains every
// slot (the last one there that wrote it), keeps transactions whole, and agrees with the clock: who had
// returned before another began comes first.
//
// A commit with durability=process is promised as long as there is power. When that is lost, each of its
// slots is a thing of its own, which may be torn until a later commit that survives power has written it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/crash/workload.h"

namespace stfs::test {

/// Disjoint runs of bytes of the small archive, some of them in one block or one tensor.
const std::vector<Piece>& slots();
/// In the archive's file.
ByteRange bytes_of(const Piece& slot);

struct LoggedCommit {
  enum class Fate : std::uint8_t {
    Done,     // returned success
    Refused,  // returned an error that means that nothing was done
    Unknown,  // still at work, or its process was killed meanwhile
  };
  std::vector<std::size_t> slots;
  Fate fate = Fate::Unknown;
  std::uint64_t begin = 0;
  std::uint64_t end = UINT64_MAX;
  Durability durability = Durability::Power;
  /// The power was lost, and it need not survive that: each slot may be there, or not, or torn, ...
  bool is_at_risk = false;
  std::vector<std::size_t> safe_slots = {};  // ... but for these, which were on the disk by then
};

/// A value, so that one can be kept with an image of the disk.
class CommitLog {
 public:
  /// @return its number; the bytes are those of Writer with that number.
  std::size_t begin(std::vector<std::size_t> slots, Durability durability = Durability::Power);
  void end(std::size_t number, LoggedCommit::Fate fate);
  /// The power is lost: who was at work is no more.
  /// @param content  of the archive before.
  /// @param settled  slots whose bytes, as they are there, were on the disk. Nothing may take those back.
  void lose_power(const Content& content, const std::vector<std::size_t>& settled);
  [[nodiscard]] std::optional<std::string> explain(const Content& content) const;

 private:
  /// What is there whole or not at all: a commit, or one slot of a commit at risk.
  struct Node {
    std::size_t commit;
    std::vector<std::size_t> slots;
    bool is_due;  // it has to be there, if nothing came later
  };
  /// Of each slot, which node is seen there; nothing where the bytes are torn and may be.
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
