// Identifies a tensor while the structure of its archive changes.
//
// A position (core/format/tensor_index.h) counts the tensors of one header in the order of their bytes. A
// rename, a deletion or a new tensor makes another header, in which the same tensor may have another
// position. Its id stays the same. Stages, locks, inode numbers, generations and checksums are kept by id.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace stfs {

/// While an archive or a model is open, no two of its tensors get the same id.
enum class TensorId : std::uint32_t {};

/// The number of an id, for arrays that hold something for each id.
constexpr std::uint32_t number_of(TensorId id) {
  return static_cast<std::uint32_t>(id);
}

/// The ids of the tensors of one header. Immutable: any number of threads may read it.
class TensorIds {
 public:
  TensorIds() = default;
  /// The ids of the first header that was read: each is its tensor's position. Takes no memory.
  explicit TensorIds(std::uint32_t tensors) : tensors_(tensors), end_(tensors) {}

  /// @param ids  by position, all different.
  /// @param end  above the number of each id, and of all that were given so far. May throw std::bad_alloc.
  TensorIds(std::vector<TensorId> ids, std::uint32_t end)
      : tensors_(static_cast<std::uint32_t>(ids.size())),
        end_(end),
        ids_(std::move(ids)),
        positions_(end, kNone) {
    for (std::uint32_t at = 0; at < tensors_; ++at) positions_[number_of(ids_[at])] = at;
  }

  /// Returns the ids of the header that follows this one. May throw std::bad_alloc.
  /// @param before  for each position in the next header: the same tensor's position in this one. Nothing for
  ///                a new tensor, which gets a new id.
  [[nodiscard]] TensorIds next(std::span<const std::optional<std::uint32_t>> before) const {
    std::vector<TensorId> ids;
    ids.reserve(before.size());
    std::uint32_t end = end_;
    for (const auto& position : before) ids.push_back(position ? of(*position) : TensorId{end++});
    return {std::move(ids), end};
  }

  [[nodiscard]] std::uint32_t size() const { return tensors_; }
  [[nodiscard]] TensorId of(std::uint32_t position) const {
    return ids_.empty() ? TensorId{position} : ids_[position];
  }
  /// Returns nothing if the header has no tensor of that id, for example after a deletion.
  [[nodiscard]] std::optional<std::uint32_t> position(TensorId id) const {
    if (number_of(id) >= end_) return std::nullopt;
    if (ids_.empty()) return number_of(id) < tensors_ ? std::optional(number_of(id)) : std::nullopt;
    const std::uint32_t at = positions_[number_of(id)];
    return at == kNone ? std::nullopt : std::optional(at);
  }
  /// The number above all ids that were given so far.
  [[nodiscard]] std::uint32_t end() const { return end_; }

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  std::uint32_t tensors_ = 0;
  std::uint32_t end_ = 0;
  std::vector<TensorId> ids_;             // by position; empty if each id is the position
  std::vector<std::uint32_t> positions_;  // by id; empty with ids_
};

}  // namespace stfs
