// The places of a generation's tensors. A generation that follows another one uses the other's arenas for the
// tensors that have not changed, and new arenas for the changed tensors.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/byte_range.h"
#include "tools/device/arena.h"
#include "tools/upload/plan.h"

namespace stfs::serve {

struct ServedArena {
  std::shared_ptr<device::Arena> arena;
  /// Each arena of a server has a different number, in all generations of the server.
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
  /// The size of the arenas that were made for this generation.
  [[nodiscard]] std::uint64_t own_bytes(std::uint64_t generation) const;
};

/// Returns the layout of a generation that shares no memory.
/// @param arenas  one for each of plan.devices.
ServedLayout whole_layout(const upload::Plan& plan, std::vector<std::shared_ptr<device::Arena>> arenas,
                          std::uint64_t generation);

/// The part of a plan that a generation uploads.
struct PartOfPlan {
  upload::Plan plan;  // places are offsets in new arenas, one for each of its devices
  /// By position in plan.tensors: the position in the whole plan.
  std::vector<std::uint32_t> positions;
};

/// Chooses the tensors to upload: all changed tensors, and unchanged tensors in two cases: less than half of
/// their arena is still in use, or the generation would refer to more than `most_arenas`. Unused memory is
/// thus freed at last.
/// @param plan     the whole plan of the next generation, with the same tensors as `before`, in the same
///                 order.
/// @param changed  by position in plan.tensors.
PartOfPlan part_to_upload(const upload::Plan& plan, const ServedLayout& before,
                          const std::vector<bool>& changed, std::size_t most_arenas);

/// Returns the layout after that upload.
/// @param arenas  one for each of part.plan.devices.
ServedLayout next_layout(const ServedLayout& before, const std::vector<bool>& changed, const PartOfPlan& part,
                         std::vector<std::shared_ptr<device::Arena>> arenas, std::uint64_t generation);

}  // namespace stfs::serve
