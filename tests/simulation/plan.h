// What a simulation does: a list of operations, each of them a few numbers, so that any part of the list is a
// simulation, too. What the numbers mean depends on what there is at that time.
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
  /// While it is under way: at a call on the storage, or when it waits for its answer or for time to pass.
  struct Meanwhile;
  std::vector<Meanwhile> meanwhile;
  /// A call on the storage that fails.
  struct Fault {
    std::uint32_t at = 0;  // counts those calls that can (StoreFaults)
    int errno_value = 0;
    bool cuts_short = false;  // half of a write is done
  };
  std::optional<Fault> fault;
};
struct Operation::Meanwhile {
  std::uint32_t at = 0;  // counts those calls and waits
  Operation operation;   // has none of its own
};

struct Plan {
  std::uint64_t seed = 0;  // of what else there is to decide
  std::vector<Operation> operations;
};

/// The same for the same seed.
Plan random_plan(std::uint64_t seed, std::size_t operations);
std::string text_of(const Operation& operation);

}  // namespace stfs::test
