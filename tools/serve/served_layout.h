// Where the tensors of a generation lie. A generation that follows another one uses the arenas of that one
// for the tensors that have not changed, and has arenas of its own for the others.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/byte_range.h"
#include "tools/device/arena.h"
#include "tools/upload/plan.h"

namespace stfs::upload {

struct ServedArena {
  std::shared_ptr<Arena> arena;
  /// Each arena of a server has another number, in all of its generations.
  std::uint64_t number = 0;
  std::uint64_t made_in = 0;  // the generation that it was made for
};

struct ServedPlace {
  std::uint32_t arena = 0;  // index into ServedLayout::arenas
  ByteRange place;
  std::uint64_t changed_in = 0;  // the generation that brought the tensor's present bytes
};

struct ServedLayout {
  std::vector<ServedArena> arenas;
  std::vector<ServedPlace> places;  // by position in the tensors of the generation's plan

  [[nodiscard]] std::uint64_t size_bytes() const;  // of all arenas
  /// Of the arenas that were made for that generation.
  [[nodiscard]] std::uint64_t own_bytes(std::uint64_t generation) const;
};

/// The layout of a generation that shares no memory.
/// @param arenas  one for each of plan.devices.
ServedLayout whole_layout(const Plan& plan, std::vector<std::shared_ptr<Arena>> arenas,
                          std::uint64_t generation);

/// The part of a plan that a generation uploads.
struct PartOfPlan {
  Plan plan;  // places count in new arenas, one for each of its devices
  /// By position in plan.tensors: the position in the whole plan.
  std::vector<std::uint32_t> positions;
};

/// Chooses the tensors to upload: those that have changed; and those that have not, if less than half of
/// their arena is still in use, or if the generation would refer to more than `most_arenas`. So memory that
/// nothing uses is freed at last.
/// @param plan     the whole plan of the next generation; its tensors are those of `before`, in that order.
/// @param changed  by position in plan.tensors.
PartOfPlan part_to_upload(const Plan& plan, const ServedLayout& before, const std::vector<bool>& changed,
                          std::size_t most_arenas);

/// The layout after that upload.
/// @param arenas  one for each of part.plan.devices.
ServedLayout next_layout(const ServedLayout& before, const std::vector<bool>& changed, const PartOfPlan& part,
                         std::vector<std::shared_ptr<Arena>> arenas, std::uint64_t generation);

}  // namespace stfs::upload
