// A graph of what must come before what, which must have no cycle.
#include "tests/crash/commit_log.h"

#include <algorithm>
#include <span>

namespace stfs::test {
namespace {

constexpr std::size_t kBeginning = 0;  // the commit that wrote every slot at first

std::span<const std::byte> bytes_of(const Content& content, const Piece& slot) {
  const TestTensor& tensor = small_archive()[slot.tensor];
  return std::span(content).subspan(tensor.offset + slot.offset,
                                    slot.size_bytes.value_or(tensor.size_bytes - slot.offset));
}

}  // namespace

const std::vector<Piece>& slots() {
  static const std::vector<Piece> list = {{"four_bytes"},
                                          {"beside_the_header"},
                                          {"several_blocks", 0, 5000},
                                          {"several_blocks", 5000, 4000},
                                          {"left"},
                                          {"right"},
                                          {"several_blocks", 9000},
                                          {"across", 0, 100},
                                          {"unaligned"},
                                          {"block"},
                                          {"across", 100},
                                          {"end"}};
  return list;
}

std::size_t CommitLog::begin(std::vector<std::size_t> written) {
  LoggedCommit commit;
  commit.slots = std::move(written);
  commit.begin = ++clock_;
  commits_.push_back(std::move(commit));
  return commits_.size() - 1;
}

void CommitLog::end(std::size_t number, LoggedCommit::Fate fate) {
  commits_[number].fate = fate;
  commits_[number].end = ++clock_;
}

std::optional<std::size_t> CommitLog::writer_of(std::size_t slot, const Content& content) const {
  const auto there = bytes_of(content, slots()[slot]);
  for (std::size_t number = commits_.size(); number-- > 1;) {
    if (std::ranges::find(commits_[number].slots, slot) == commits_[number].slots.end()) continue;
    if (std::ranges::equal(there, piece_bytes(small_archive(), slots()[slot], number))) return number;
  }
  if (std::ranges::equal(there, bytes_of(small_archive().content(), slots()[slot]))) return kBeginning;
  return std::nullopt;
}

bool CommitLog::comes_before(std::size_t one, std::size_t other,
                             const std::vector<std::size_t>& shown) const {
  if (one == other) return false;
  if (one == kBeginning || commits_[one].end < commits_[other].begin) return true;
  return std::ranges::any_of(commits_[one].slots, [&](std::size_t slot) { return shown[slot] == other; });
}

std::optional<std::string> CommitLog::explain(const Content& content) const {
  std::vector<std::size_t> shown;
  Content outside = content;
  for (std::size_t slot = 0; slot < slots().size(); ++slot) {
    const auto writer = writer_of(slot, content);
    const std::string name = std::string(slots()[slot].tensor) + "+" + std::to_string(slots()[slot].offset);
    if (!writer) return "TORN: " + name + " is nobody's";
    if (commits_[*writer].fate == LoggedCommit::Fate::Refused) {
      return name + " is there from commit " + std::to_string(*writer) + ", which was refused";
    }
    shown.push_back(*writer);
    const auto first = bytes_of(small_archive().content(), slots()[slot]);
    std::ranges::copy(first, outside.begin() + (first.data() - small_archive().content().data()));
  }
  if (outside != small_archive().content()) return "bytes that nobody wrote have changed";

  // Takes away whoever nothing that is left must follow, until nobody is left.
  std::vector<std::size_t> left;
  for (std::size_t number = 0; number < commits_.size(); ++number) {
    const bool is_shown = std::ranges::find(shown, number) != shown.end();
    if (is_shown || commits_[number].fate == LoggedCommit::Fate::Done) left.push_back(number);
  }
  while (!left.empty()) {
    const auto last = std::ranges::find_if(left, [&](std::size_t number) {
      return std::ranges::none_of(left,
                                  [&](std::size_t other) { return comes_before(number, other, shown); });
    });
    if (last == left.end()) {
      std::string text = "LOST or TORN: no order explains commits";
      for (const std::size_t number : left) text += " " + std::to_string(number);
      return text;
    }
    left.erase(last);
  }
  return std::nullopt;
}

}  // namespace stfs::test
