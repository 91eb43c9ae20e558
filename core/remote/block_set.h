// A set of blocks of a file. It takes memory only for the parts of the file that have members: a server may
// claim any size.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

namespace stfs {

/// For one thread at a time.
class BlockSet {
 public:
  explicit BlockSet(std::uint64_t count) : parts_(static_cast<std::size_t>(count / kPartBlocks + 1)) {}

  [[nodiscard]] bool has(std::uint64_t block) const {
    const auto& part = parts_[block / kPartBlocks];
    return part && ((*part)[block % kPartBlocks / kWordBits] >> (block % kWordBits) & 1U) != 0;
  }
  void set(std::uint64_t block, bool is_member) {
    auto& part = parts_[block / kPartBlocks];
    if (!part && !is_member) return;
    if (!part) part = std::make_unique<Part>();
    const std::uint64_t bit = std::uint64_t{1} << (block % kWordBits);
    std::uint64_t& word = (*part)[block % kPartBlocks / kWordBits];
    word = is_member ? word | bit : word & ~bit;
  }
  void clear() {
    for (auto& part : parts_) part.reset();
  }

 private:
  static constexpr std::uint64_t kWordBits = 64;
  static constexpr std::uint64_t kPartBlocks = 1 << 16;
  using Part = std::array<std::uint64_t, kPartBlocks / kWordBits>;
  std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace stfs
