// Shared by all kinds of operations: a program, the target of its operation, and a comparison with the truth.
// The numbers of an operation (plan.h) select them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tests/simulation/machine.h"

namespace stfs::test {

inline constexpr std::string_view kTransactions[] = {"T0", "T1"};
inline constexpr std::string_view kTransactionsPath = ".safetensors/transactions/";

class Deeds {
 protected:
  explicit Deeds(Machine& machine)
      : machine_(machine),
        kernel_(machine.kernel()),
        truth_(machine.truth()),
        programs_(machine.programs()),
        now_(machine.situation()) {}

  [[nodiscard]] Target pick_tensor(std::uint32_t number) const;
  /// Selects a tensor, or its file in a transaction.
  [[nodiscard]] Target pick_target(std::uint32_t number) const;
  static std::string path_of(const Target& target);
  /// Returns true if a request for this target is under way, so that another one has to wait.
  [[nodiscard]] bool is_busy(const Target& target) const;

  struct Chosen {
    Program* program = nullptr;
    std::size_t descriptor = 0;
    DescriptionPointer file{};
    Target target{};
  };
  /// Selects a file descriptor of a target that is not busy.
  [[nodiscard]] std::optional<Chosen> choose(std::uint32_t program, std::uint32_t descriptor) const;

  /// After the end of the mount, nothing is expected.
  void expect(bool holds, const std::string& what);
  /// @return true if there was no error.
  bool expect_error(const Truth::Dues& due, int error, const std::string& what);
  void read_and_check(Program& program, const DescriptionPointer& file, std::uint64_t offset,
                      std::uint64_t size_bytes);

  Machine& machine_;
  Kernel& kernel_;
  Truth& truth_;
  Programs& programs_;
  Situation& now_;
};

}  // namespace stfs::test
