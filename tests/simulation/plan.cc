// Draws random plans.
#include "tests/simulation/plan.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tests/support/choices.h"

namespace stfs::test {
namespace {

struct Row {
  Deed deed;
  std::string_view name;
  unsigned weight;            // among all operations
  unsigned weight_meanwhile;  // among the operations in its course
};

constexpr Row kRows[] = {
    {Deed::ReadPath, "read a path", 14, 12},
    {Deed::ReadView, "read a view", 6, 4},
    {Deed::Stat, "stat", 8, 2},
    {Deed::List, "list", 2, 2},
    {Deed::Checksum, "checksum", 3, 1},
    {Deed::Open, "open", 12, 2},
    {Deed::WriteWhole, "write a tensor", 10, 0},
    {Deed::ResizePath, "truncate", 1, 0},
    {Deed::Read, "read", 8, 4},
    {Deed::Write, "write", 16, 3},
    {Deed::Close, "close", 10, 2},
    {Deed::Sync, "fsync", 4, 1},
    {Deed::Resize, "ftruncate", 2, 0},
    {Deed::Duplicate, "dup", 2, 1},
    {Deed::Map, "mmap", 3, 0},
    {Deed::Store, "store", 5, 1},
    {Deed::Unmap, "munmap", 2, 0},
    {Deed::Fork, "fork", 2, 1},
    {Deed::Exit, "exit", 2, 0},
    {Deed::Kill, "kill", 2, 1},
    {Deed::Begin, "begin", 3, 1},
    {Deed::Commit, "commit", 4, 0},
    {Deed::Abandon, "abandon", 1, 0},
    {Deed::WriteBack, "write back", 3, 1},
    {Deed::Reclaim, "reclaim", 3, 2},
    {Deed::Release, "release", 8, 2},
    {Deed::Invalidate, "invalidate", 14, 3},
    {Deed::Look, "look", 6, 1},
    {Deed::Tidy, "tidy", 3, 0},
    {Deed::Remount, "remount", 1, 0},
    {Deed::KillMount, "kill the mount", 1, 1},
    {Deed::LosePower, "lose power", 1, 2},
    {Deed::Put, "put", 4, 3},
    {Deed::ForeignWrite, "write beside", 2, 0},
    {Deed::Replace, "replace", 1, 1},
    {Deed::ChangeAccess, "chmod", 4, 1},
};
static_assert(std::size(kRows) == kDeeds);

Deed draw(RandomChoices& choices, unsigned Row::*weight) {
  unsigned sum = 0;
  for (const Row& row : kRows) sum += row.*weight;
  std::size_t at = choices.below(sum);
  for (const Row& row : kRows) {
    if (at < row.*weight) return row.deed;
    at -= row.*weight;
  }
  return Deed::ReadPath;
}

Operation draw_operation(RandomChoices& choices, unsigned Row::*weight) {
  Operation operation;
  operation.deed = draw(choices, weight);
  for (std::uint32_t& number : operation.numbers) number = static_cast<std::uint32_t>(choices.next());
  return operation;
}

Operation::Fault draw_fault(RandomChoices& choices) {
  constexpr int kErrors[] = {EIO, ENOSPC, EDQUOT};
  Operation::Fault fault;
  fault.at = static_cast<std::uint32_t>(choices.below(choices.one_in(2) ? 4 : 16));
  fault.errno_value = kErrors[choices.below(std::size(kErrors))];
  fault.cuts_short = choices.one_in(2);
  return fault;
}

}  // namespace

std::string_view name_of(Deed deed) {
  return kRows[static_cast<std::size_t>(deed)].name;
}

Plan random_plan(std::uint64_t seed, std::size_t operations) {
  RandomChoices choices(seed);
  Plan plan;
  plan.seed = choices.next();
  const bool has_faults = choices.one_in(2);
  while (plan.operations.size() < operations) {
    Operation operation = draw_operation(choices, &Row::weight);
    if (has_faults && choices.one_in(4)) {
      operation.fault = draw_fault(choices);
      plan.operations.push_back(std::move(operation));
      continue;
    }
    for (std::size_t some = choices.one_in(3) ? 1 + choices.below(3) : 0; some-- > 0;) {
      const auto at = static_cast<std::uint32_t>(choices.below(choices.one_in(2) ? 8 : 40));
      operation.meanwhile.push_back({at, draw_operation(choices, &Row::weight_meanwhile)});
    }
    plan.operations.push_back(std::move(operation));
  }
  return plan;
}

std::string text_of(const Operation& operation) {
  const auto& [a, b, c, d] = operation.numbers;
  std::string text = fmt::format("{} {:x} {:x} {:x} {:x}", name_of(operation.deed), a, b, c, d);
  if (operation.fault) {
    text += fmt::format("; call {} {}: {}", operation.fault->at,
                        operation.fault->cuts_short ? "is cut short" : "fails",
                        strerrorname_np(operation.fault->errno_value));
  }
  for (const auto& [at, other] : operation.meanwhile) text += fmt::format("; at {}: {}", at, text_of(other));
  return text;
}

}  // namespace stfs::test
