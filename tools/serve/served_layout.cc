// Chooses the tensors that move to new arenas, and numbers the arenas.
#include "tools/serve/served_layout.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "tools/serve/serve_protocol.h"

namespace stfs::serve {
namespace {

using device::Arena;

ServedArena numbered(std::shared_ptr<Arena> arena, std::uint64_t generation, std::size_t index) {
  return {std::move(arena), generation * kMaxServeArenas + index, generation};
}

/// Returns, by arena of `before`, the bytes of tensors that stay there, including the padding before the next
/// tensor.
std::vector<std::uint64_t> used_bytes(const ServedLayout& before, const std::vector<bool>& moves) {
  std::vector<std::uint64_t> used(before.arenas.size(), 0);
  for (std::size_t at = 0; at < before.places.size(); ++at) {
    if (!moves[at])
      used[before.places[at].arena] += device::aligned_for_tensor(before.places[at].place.size_bytes);
  }
  return used;
}

void move_out_of(const ServedLayout& before, const std::vector<bool>& left, std::vector<bool>& moves) {
  for (std::size_t at = 0; at < before.places.size(); ++at) {
    if (left[before.places[at].arena]) moves[at] = true;
  }
}

}  // namespace

std::uint64_t ServedLayout::size_bytes() const {
  return std::accumulate(
      arenas.begin(), arenas.end(), std::uint64_t{0},
      [](std::uint64_t sum, const ServedArena& it) { return sum + it.arena->size_bytes(); });
}

std::uint64_t ServedLayout::own_bytes(std::uint64_t generation) const {
  std::uint64_t sum = 0;
  for (const ServedArena& it : arenas) {
    if (it.made_in == generation) sum += it.arena->size_bytes();
  }
  return sum;
}

ServedLayout whole_layout(const upload::Plan& plan, std::vector<std::shared_ptr<Arena>> arenas,
                          std::uint64_t generation) {
  ServedLayout layout;
  for (auto& arena : arenas)
    layout.arenas.push_back(numbered(std::move(arena), generation, layout.arenas.size()));
  layout.places.reserve(plan.tensors.size());
  for (const upload::PlannedTensor& tensor : plan.tensors)
    layout.places.push_back({tensor.device, tensor.place, generation});
  return layout;
}

PartOfPlan part_to_upload(const upload::Plan& plan, const ServedLayout& before,
                          const std::vector<bool>& changed, std::size_t most_arenas) {
  std::vector<bool> moves = changed;
  std::vector<bool> left(before.arenas.size(), false);
  const std::vector<std::uint64_t> used = used_bytes(before, moves);
  for (std::size_t at = 0; at < used.size(); ++at)
    left[at] = used[at] < before.arenas[at].arena->size_bytes() / 2;
  // The smallest arenas are left first, because that moves the fewest bytes. Half of the arenas are left, so
  // that this is rare.
  const auto staying = static_cast<std::size_t>(std::ranges::count(left, false));
  if (staying + plan.devices.size() > most_arenas) {
    std::vector<std::size_t> order(used.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::sort(order, {}, [&](std::size_t at) { return used[at]; });
    std::size_t stay = staying;
    for (const std::size_t at : order) {
      if (stay <= most_arenas / 2) break;
      if (left[at]) continue;
      left[at] = true;
      --stay;
    }
  }
  move_out_of(before, left, moves);

  PartOfPlan part;
  part.plan.models = plan.models;
  std::vector<std::optional<std::uint32_t>> devices(plan.devices.size());
  for (std::uint32_t at = 0; at < plan.tensors.size(); ++at) {
    if (!moves[at]) continue;
    upload::PlannedTensor tensor = plan.tensors[at];
    auto& known = devices[tensor.device];
    if (!known) {
      known = static_cast<std::uint32_t>(part.plan.devices.size());
      part.plan.devices.push_back({plan.devices[tensor.device].device, 0});
    }
    tensor.device = *known;
    upload::PlannedDevice& device = part.plan.devices[tensor.device];
    tensor.place.offset = device::aligned_for_tensor(device.arena_bytes);
    device.arena_bytes = tensor.place.end();
    part.plan.tensors.push_back(std::move(tensor));
    part.positions.push_back(at);
  }
  return part;
}

ServedLayout next_layout(const ServedLayout& before, const std::vector<bool>& changed, const PartOfPlan& part,
                         std::vector<std::shared_ptr<Arena>> arenas, std::uint64_t generation) {
  ServedLayout next;
  next.places = before.places;
  std::vector<bool> moves(before.places.size(), false);
  for (std::size_t at = 0; at < changed.size(); ++at) {
    if (changed[at]) next.places[at].changed_in = generation;
  }
  for (const std::uint32_t position : part.positions) moves[position] = true;

  // Keep the arenas that a tensor is left in.
  std::vector<bool> is_used(before.arenas.size(), false);
  for (std::size_t at = 0; at < moves.size(); ++at) {
    if (!moves[at]) is_used[before.places[at].arena] = true;
  }
  std::vector<std::uint32_t> index(before.arenas.size(), 0);
  for (std::size_t at = 0; at < before.arenas.size(); ++at) {
    if (!is_used[at]) continue;
    index[at] = static_cast<std::uint32_t>(next.arenas.size());
    next.arenas.push_back(before.arenas[at]);
  }
  for (std::size_t at = 0; at < moves.size(); ++at) {
    if (!moves[at]) next.places[at].arena = index[before.places[at].arena];
  }

  const auto first = static_cast<std::uint32_t>(next.arenas.size());
  for (std::size_t at = 0; at < arenas.size(); ++at)
    next.arenas.push_back(numbered(std::move(arenas[at]), generation, at));
  for (std::size_t at = 0; at < part.positions.size(); ++at) {
    ServedPlace& place = next.places[part.positions[at]];
    place.arena = first + part.plan.tensors[at].device;
    place.place = part.plan.tensors[at].place;
  }
  return next;
}

}  // namespace stfs::serve
