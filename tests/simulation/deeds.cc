#include "tests/simulation/deeds.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stfs::test {

Target Deeds::pick_tensor(std::uint32_t number) const {
  return {.edition = truth_.edition(),
          .tensor = std::string(kTensorNames[number % std::size(kTensorNames)]),
          .transaction = {}};
}

Target Deeds::pick_target(std::uint32_t number) const {
  Target target = pick_tensor(number);
  const std::uint32_t where = number / 4 % 4;
  if (where < std::size(kTransactions) && truth_.has_transaction(std::string(kTransactions[where]))) {
    target.transaction = kTransactions[where];
    target.begun = truth_.begun(target.transaction);
  }
  return target;
}

std::string Deeds::path_of(const Target& target) {
  if (target.transaction.empty()) return target.tensor;
  return std::string(kTransactionsPath) + target.transaction + "/" + target.tensor;
}

bool Deeds::is_busy(const Target& target) const {
  return truth_.is_busy(target) || (now_.reading && now_.reading->tensor == target.tensor) ||
         (now_.reading && !target.transaction.empty() && now_.reading->transaction == target.transaction) ||
         (!target.transaction.empty() && target.transaction == now_.committing);
}

void Deeds::read_and_check(Program& program, const DescriptionPointer& file, std::uint64_t offset,
                           std::uint64_t size) {
  const Target target = truth_.target_of(*file);
  if (is_busy(target) || kernel_.is_dirty(file->node, 0, ~0ULL >> 1U)) return;
  // After an append to a tensor that was cut, the kernel believes in a larger size until it asks for the
  // attributes.
  const std::uint64_t all = target.edition->committed.at(target.tensor).size();
  size = std::min(size, all - std::min(all, offset));
  const auto before = std::exchange(now_.reading, target);
  const auto got = kernel_.read(program, file, offset, size);
  now_.reading = before;
  if (!truth_.has_ended(target)) expect_error({0}, got.error, "a read");
  if (kernel_.is_aborted() || got.error != 0) return;
  ++machine_.counts().checks;
  truth_.check_read(target, offset, got.value);
}

std::optional<Deeds::Chosen> Deeds::choose(std::uint32_t a, std::uint32_t b) const {
  Program* program = programs_.pick(a);
  if (program == nullptr) return std::nullopt;
  const auto at = Programs::pick_descriptor(*program, b);
  if (!at) return std::nullopt;
  Chosen chosen{.program = program, .descriptor = *at, .file = program->descriptors[*at]};
  chosen.target = truth_.target_of(*chosen.file);
  if (is_busy(chosen.target)) return std::nullopt;
  return chosen;
}

bool Deeds::expect_error(const Truth::Dues& due, int error, const std::string& what) {
  const bool is_fault = now_.fault != 0 && error == now_.fault;
  expect(is_fault || due.contains(error),
         fmt::format("{} gives {} in place of {}", what, error, fmt::join(due, " or ")));
  return error == 0;
}

void Deeds::expect(bool holds, const std::string& what) {
  if (!kernel_.is_aborted()) truth_.expect(holds, what);
}

}  // namespace stfs::test
