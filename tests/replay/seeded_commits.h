// An archive and a series of commits that follow from a seed alone: the workload writes them, and whoever
// checks a crash state computes, without the code under test, what the archive must hold after each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace stfs::replay {

struct PlainTensor {
  std::string name;
  std::uint64_t offset = 0;  // absolute in the file
  std::uint64_t size_bytes = 0;
};

/// Tensors of bytes that show every case of how a tensor lies in blocks, the largest first to be cloned.
struct Layout {
  /// @param large_bytes  size of the tensor "large".
  explicit Layout(std::uint64_t large_bytes);
  /// Position of the tensor, in the order of the file; throws where there is none.
  [[nodiscard]] std::size_t position(const std::string& name) const;

  std::string header;  // length and JSON: what precedes the data
  std::vector<PlainTensor> tensors;
  std::uint64_t size_bytes = 0;  // of the file
};

/// Bytes that a commit writes into one tensor.
struct Patch {
  std::size_t tensor = 0;
  std::uint64_t begin = 0;  // in the tensor
  std::uint64_t size_bytes = 0;
};

/// What commit `number` (from 1) changes. Patches of one tensor may overlap; they write the same bytes there.
std::vector<Patch> patches_of(const Layout& layout, std::uint64_t seed, std::uint64_t number);
/// What commit `number` writes at an absolute offset; 0 is the content at the beginning.
void fill_bytes(std::span<std::byte> to, std::uint64_t seed, std::uint64_t number, std::uint64_t offset);

/// The whole file after a number of commits.
class Expectation {
 public:
  Expectation(const Layout& layout, std::uint64_t seed);
  /// To after the next commit.
  void advance();
  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  const Layout& layout_;
  std::uint64_t seed_;
  std::uint64_t number_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace stfs::replay
