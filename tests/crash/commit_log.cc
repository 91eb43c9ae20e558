// Looks for an order of the commits: a graph of the necessary order must have no cycle.
#include "tests/crash/commit_log.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

namespace stfs::test {
namespace {

constexpr std::size_t kBeginning = 0;  // the number of a commit that wrote the initial content

std::span<const std::byte> bytes_at(const Content& content, ByteRange place) {
  return std::span(content).subspan(place.offset, place.size_bytes);
}

std::span<const std::byte> bytes_of(const Content& content, std::size_t slot) {
  static const std::vector<ByteRange> places = [] {
    std::vector<ByteRange> list;
    for (const Piece& piece : slots()) list.push_back(bytes_of(piece));
    return list;
  }();
  return bytes_at(content, places[slot]);
}

/// The ranges between the slots.
std::vector<ByteRange> make_gaps() {
  std::vector<ByteRange> taken;
  for (const Piece& piece : slots()) taken.push_back(bytes_of(piece));
  taken.push_back({small_archive().content().size(), 0});
  std::ranges::sort(taken, {}, &ByteRange::offset);
  std::vector<ByteRange> gaps;
  std::uint64_t at = 0;
  for (const ByteRange& place : taken) {
    if (place.offset > at) gaps.push_back({at, place.offset - at});
    at = place.end();
  }
  return gaps;
}

/// The bytes that the commit of that number writes into the slot. A cache keeps them, because the same
/// commits explain many contents.
const Content& written_by(std::size_t number, std::size_t slot) {
  static std::map<std::pair<std::size_t, std::size_t>, Content> known;
  const auto [entry, is_new] = known.try_emplace({number, slot});
  if (is_new) entry->second = piece_bytes(small_archive(), slots()[slot], number);
  return entry->second;
}

}  // namespace

ByteRange bytes_of(const Piece& slot) {
  const TestTensor& tensor = small_archive()[slot.tensor];
  return {tensor.offset + slot.offset, slot.size_bytes.value_or(tensor.size_bytes - slot.offset)};
}

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

std::size_t CommitLog::begin(std::vector<std::size_t> written, Durability durability) {
  LoggedCommit commit;
  commit.slots = std::move(written);
  commit.begin = ++clock_;
  commit.durability = durability;
  commits_.push_back(std::move(commit));
  return commits_.size() - 1;
}

void CommitLog::end(std::size_t number, LoggedCommit::Fate fate) {
  commits_[number].fate = fate;
  commits_[number].end = ++clock_;
}

void CommitLog::lose_power(const Content& content, const std::vector<std::size_t>& settled) {
  ++clock_;
  for (LoggedCommit& commit : commits_) {
    commit.end = std::min(commit.end, clock_);
    const bool is_safe = commit.durability == Durability::Power || commit.fate == LoggedCommit::Fate::Refused;
    if (!is_safe) commit.is_at_risk = true;
  }
  for (const std::size_t slot : settled) {
    const auto writer = writer_of(slot, content);
    if (!writer) continue;
    LoggedCommit& commit = commits_[*writer];
    if (commit.is_at_risk && commit.fate == LoggedCommit::Fate::Done) commit.safe_slots.push_back(slot);
  }
}

std::optional<std::size_t> CommitLog::writer_of(std::size_t slot, const Content& content) const {
  const auto there = bytes_of(content, slot);
  for (std::size_t number = commits_.size(); number-- > 1;) {
    if (std::ranges::find(commits_[number].slots, slot) == commits_[number].slots.end()) continue;
    if (are_same(there, written_by(number, slot))) return number;
  }
  if (are_same(there, bytes_of(small_archive().content(), slot))) return kBeginning;
  return std::nullopt;
}

std::vector<CommitLog::Node> CommitLog::nodes() const {
  std::vector<Node> nodes;
  for (std::size_t number = 0; number < commits_.size(); ++number) {
    const LoggedCommit& commit = commits_[number];
    if (!commit.is_at_risk) {
      nodes.push_back({number, commit.slots, commit.fate == LoggedCommit::Fate::Done});
      continue;
    }
    for (const std::size_t slot : commit.slots) {
      const bool is_safe = std::ranges::find(commit.safe_slots, slot) != commit.safe_slots.end();
      nodes.push_back({number, {slot}, is_safe});
    }
  }
  return nodes;
}

bool CommitLog::comes_before(const std::vector<Node>& nodes, std::size_t one, std::size_t other,
                             const Shown& shown) const {
  const std::size_t first = nodes[one].commit;
  const std::size_t second = nodes[other].commit;
  if (one == other) return false;
  if (first != second && (first == kBeginning || commits_[first].end < commits_[second].begin)) return true;
  return std::ranges::any_of(nodes[one].slots, [&](std::size_t slot) { return shown[slot] == other; });
}

bool CommitLog::may_be_torn(const std::vector<Node>& nodes, std::size_t slot) const {
  const auto writes = [slot](const Node& node) {
    return std::ranges::find(node.slots, slot) != node.slots.end();
  };
  return std::ranges::any_of(nodes, [&](const Node& node) {
    if (!commits_[node.commit].is_at_risk || node.is_due || !writes(node)) return false;
    return std::ranges::none_of(nodes, [&](const Node& later) {
      return later.is_due && writes(later) && commits_[node.commit].end < commits_[later.commit].begin;
    });
  });
}

std::optional<std::string> CommitLog::explain(const Content& content) const {
  const std::vector<Node> all = nodes();
  Shown shown;
  for (std::size_t slot = 0; slot < slots().size(); ++slot) {
    const auto writer = writer_of(slot, content);
    const auto name = [slot] {
      return std::string(slots()[slot].tensor) + "+" + std::to_string(slots()[slot].offset);
    };
    if (!writer && !may_be_torn(all, slot)) return "TORN: " + name() + " is nobody's";
    if (writer && commits_[*writer].fate == LoggedCommit::Fate::Refused) {
      return name() + " is there from commit " + std::to_string(*writer) + ", which was refused";
    }
    shown.emplace_back();
    for (std::size_t node = 0; writer && node < all.size(); ++node) {
      const bool has_slot = std::ranges::find(all[node].slots, slot) != all[node].slots.end();
      if (all[node].commit == *writer && (has_slot || *writer == kBeginning)) shown.back() = node;
    }
  }
  static const std::vector<ByteRange> gaps = make_gaps();
  const auto is_kept = [&](ByteRange gap) {
    return are_same(bytes_at(content, gap), bytes_at(small_archive().content(), gap));
  };
  if (content.size() != small_archive().content().size() || !std::ranges::all_of(gaps, is_kept))
    return "bytes that nobody wrote have changed";

  // Repeatedly removes a node that comes before no remaining node. An order exists if no node is left.
  std::vector<std::size_t> left;
  for (std::size_t node = 0; node < all.size(); ++node) {
    const bool is_shown = std::ranges::find(shown, node) != shown.end();
    if (is_shown || all[node].is_due) left.push_back(node);
  }
  while (!left.empty()) {
    const auto last = std::ranges::find_if(left, [&](std::size_t node) {
      return std::ranges::none_of(left,
                                  [&](std::size_t other) { return comes_before(all, node, other, shown); });
    });
    if (last == left.end()) {
      std::string text = "LOST or TORN: no order explains commits";
      for (const std::size_t node : left) text += " " + std::to_string(all[node].commit);
      return text;
    }
    left.erase(last);
  }
  return std::nullopt;
}

}  // namespace stfs::test
