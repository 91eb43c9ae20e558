// What all that programs do has in common: somebody who does it, something that it is done to, and a
// comparison with the truth. The numbers of an operation (plan.h) say which.
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
  /// A tensor, or its file in a transaction.
  [[nodiscard]] Target pick_target(std::uint32_t number) const;
  static std::string path_of(const Target& target);
  /// Others would wait for who is at it.
  [[nodiscard]] bool is_busy(const Target& target) const;

  struct Chosen {
    Program* program = nullptr;
    std::size_t descriptor = 0;
    DescriptionPointer file{};
    Target target{};
  };
  /// A descriptor that nobody is at.
  [[nodiscard]] std::optional<Chosen> choose(std::uint32_t program, std::uint32_t descriptor) const;

  /// Nothing is expected of a mount that has gone.
  void expect(bool holds, const std::string& what);
  /// @return that there was none.
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
