// The plan of a simulation: a list of operations, each with a few numbers. Any part of the list is a
// simulation also. The meaning of the numbers depends on the state at that time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs::test {

enum class Deed : std::uint8_t {
  // Of a program, by a path:
  ReadPath,
  ReadView,
  Stat,
  List,
  Checksum,
  Open,
  WriteWhole,  // open, write, close
  ResizePath,
  // By a descriptor:
  Read,
  Write,
  Close,
  Sync,
  Resize,
  Duplicate,
  Map,
  Store,
  Unmap,
  // Programs:
  Fork,
  Exit,
  Kill,
  // Transactions:
  Begin,
  Commit,
  Abandon,
  // The kernel:
  WriteBack,
  Reclaim,
  Release,
  // The mount:
  Invalidate,
  Look,
  Tidy,
  Remount,
  KillMount,
  LosePower,
  // Others:
  Put,
  ForeignWrite,
  Replace,
  ChangeAccess,
};
inline constexpr std::size_t kDeeds = static_cast<std::size_t>(Deed::ChangeAccess) + 1;
std::string_view name_of(Deed deed);

struct Operation {
  Deed deed = Deed::ReadPath;
  std::array<std::uint32_t, 4> numbers{};
  /// An operation that is done during this one: at a call on the storage, or while this one waits for a reply
  /// or for time to pass.
  struct Meanwhile;
  std::vector<Meanwhile> meanwhile;
  /// A call on the storage that fails.
  struct Fault {
    std::uint32_t at = 0;  // counts the calls that can fail
    int errno_value = 0;
    bool cuts_short = false;  // half of a write is done
  };
  std::optional<Fault> fault;
};
struct Operation::Meanwhile {
  std::uint32_t at = 0;  // counts calls and waits
  Operation operation;   // has no operations in its course
};

struct Plan {
  std::uint64_t seed = 0;  // for all other decisions
  std::vector<Operation> operations;
};

/// Returns the same plan for the same seed.
Plan random_plan(std::uint64_t seed, std::size_t operations);
std::string text_of(const Operation& operation);

}  // namespace stfs::test
