// What was tried on an archive by several writers at a time, and whether a content can have come of it.
//
// A content is right where all the transactions that were done can be put into one order that explains every
// slot (the last one there that wrote it), keeps transactions whole, and agrees with the clock: who had
// returned before another began comes first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/crash/workload.h"

namespace stfs::test {

/// Disjoint runs of bytes of the small archive, some of them in one block or one tensor.
const std::vector<Piece>& slots();

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
};

/// A value, so that one can be kept with an image of the disk.
class CommitLog {
 public:
  /// @return its number; the bytes are those of Writer with that number.
  std::size_t begin(std::vector<std::size_t> slots);
  void end(std::size_t number, LoggedCommit::Fate fate);
  [[nodiscard]] std::optional<std::string> explain(const Content& content) const;

 private:
  [[nodiscard]] std::optional<std::size_t> writer_of(std::size_t slot, const Content& content) const;
  [[nodiscard]] bool comes_before(std::size_t one, std::size_t other,
                                  const std::vector<std::size_t>& shown) const;

  std::vector<LoggedCommit> commits_ = {
      {.slots = {}, .fate = LoggedCommit::Fate::Done, .begin = 0, .end = 0}};
  std::uint64_t clock_ = 0;
};

}  // namespace stfs::test
