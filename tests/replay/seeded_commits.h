// An archive and a series of commits that follow from a seed alone. The workload writes them. The check of a
// crash state computes, without the code under test, the content of the archive after each commit.
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

/// Tensors of bytes, with every case of a tensor's position relative to the blocks. Commits clone the
/// tensors of 1 MiB and more where the file system can.
struct Layout {
  /// @param large_bytes  size of the tensor "large".
  explicit Layout(std::uint64_t large_bytes);
  /// Position of the tensor, in the order of the file; throws where there is none.
  [[nodiscard]] std::size_t position(const std::string& name) const;

  std::string header;  // length and JSON
  std::vector<PlainTensor> tensors;
  std::uint64_t size_bytes = 0;  // of the file
};

/// Bytes that a commit writes into one tensor.
struct Patch {
  std::size_t tensor = 0;
  std::uint64_t begin = 0;  // in the tensor
  std::uint64_t size_bytes = 0;
};

/// The patches of commit `number` (from 1). Patches of one tensor may overlap; they write the same bytes
/// there.
std::vector<Patch> patches_of(const Layout& layout, std::uint64_t seed, std::uint64_t number);
/// Fills `to` with the bytes that commit `number` writes at an absolute offset; 0 is the initial content.
void fill_bytes(std::span<std::byte> to, std::uint64_t seed, std::uint64_t number, std::uint64_t offset);

/// The whole file after a number of commits.
class Expectation {
 public:
  Expectation(const Layout& layout, std::uint64_t seed);
  /// Applies the next commit.
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
