// Decisions that a test leaves open: drawn from a seed, which replays them, or enumerated completely.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stfs::test {

class Choices {
 public:
  virtual ~Choices() = default;
  /// A number below `count`, which is at least 1.
  virtual std::size_t below(std::size_t count) = 0;
  [[nodiscard]] bool one_in(std::size_t count) { return below(count) == 0; }
};

/// The same numbers for the same seed on every machine: splitmix64.
class RandomChoices final : public Choices {
 public:
  explicit RandomChoices(std::uint64_t seed) : state_(seed) {}
  std::size_t below(std::size_t count) override {
    return count <= 1 ? 0 : static_cast<std::size_t>(next() % count);
  }
  std::uint64_t next() {
    std::uint64_t mixed = (state_ += 0x9e3779b97f4a7c15U);
    mixed = (mixed ^ (mixed >> 30U)) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ (mixed >> 27U)) * 0x94d049bb133111ebU;
    return mixed ^ (mixed >> 31U);
  }

 private:
  std::uint64_t state_;
};

/// Enumerates every sequence of decisions, as an odometer does: make all decisions, then call next() until it
/// returns false.
class EveryChoice final : public Choices {
 public:
  std::size_t below(std::size_t count) override {
    if (at_ == digits_.size()) digits_.push_back({0, count});
    return digits_[at_++].value;
  }
  bool next() {
    at_ = 0;
    while (!digits_.empty() && digits_.back().value + 1 == digits_.back().count) digits_.pop_back();
    if (digits_.empty()) return false;
    ++digits_.back().value;
    return true;
  }

 private:
  struct Digit {
    std::size_t value;
    std::size_t count;
  };
  std::vector<Digit> digits_;
  std::size_t at_ = 0;
};

}  // namespace stfs::test
