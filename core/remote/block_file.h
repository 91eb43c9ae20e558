// The blocks of one version of a remote file that have come so far: a sparse file on the local disk.
//
// The programs of one user share the file while they run, and it stays for the next program. No lock protects
// the blocks. A block is written first, then its entry in a table: the hash of the block. A reader proves a
// block once before it takes bytes from it. A crash may cut a block short, and another program may drop it:
// then the block is fetched again.
//
//     header    4096 bytes: magic, hash, generation, size of the remote file, address, version and name
//     table     16 bytes per block: the hash of the block, when a program has last begun to use it
//     data      the blocks, at their offsets in the remote file
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"

namespace stfs {

/// Blocks [first, end).
struct Blocks {
  std::uint64_t first = 0;
  std::uint64_t end = 0;
};

/// Any thread may call.
class BlockFile {
 public:
  static constexpr std::uint64_t kBlockBytes = 256 << 10;
  /// Each block of a file takes memory and room in the table, and a server may claim any size.
  static constexpr std::uint64_t kMostBytes = std::uint64_t{32} << 40U;

  /// Which version of which remote file this is.
  struct Identity {
    std::string address;  // without the query of the address; or a server with the digest that it lists
    std::string version;
    std::uint64_t size_bytes = 0;
    std::string shown{};  // how people name the file; several names may have one digest

    [[nodiscard]] bool is_same(const Identity& other) const {
      return address == other.address && version == other.version && size_bytes == other.size_bytes;
    }
  };
  /// An entry of the table.
  struct Entry {
    std::uint64_t hash = 0;       // 0: the block is not here
    std::uint32_t used_at = 0;    // in minutes since 1970
    std::uint32_t is_pinned = 0;  // it stays until a user drops it
  };

  /// Opens the file that programs share for this address.
  /// @return null: there is none.
  static std::unique_ptr<BlockFile> find(const std::string& address);
  /// Opens the shared file of this version, and makes it if there is none. A file of another version goes.
  /// @return null: files can't be shared here (no cache directory, another user's, a foreign file system).
  static std::unique_ptr<BlockFile> share(const Identity& identity);
  /// Makes a file without a name, which vanishes with its descriptor.
  static Result<std::unique_ptr<BlockFile>> make_unnamed(std::uint64_t size_bytes);
  /// Removes a shared file that is_empty(), or whose header a crash has damaged. Does nothing while a program
  /// has it open.
  static void remove_useless(int directory, const std::string& name);
  /// Opens a shared file by its name in the directory.
  static std::unique_ptr<BlockFile> open_named(int directory, const std::string& name);

  [[nodiscard]] const Identity& identity() const { return identity_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return identity_.size_bytes; }
  [[nodiscard]] std::uint64_t count() const { return (size_bytes() + kBlockBytes - 1) / kBlockBytes; }
  [[nodiscard]] ByteRange bytes_of(Blocks blocks) const;
  [[nodiscard]] int descriptor() const { return file_.get(); }

  /// Returns true if the first block, with the start of the header, seems to be here.
  [[nodiscard]] bool has_first() const { return count() > 0 && entries({0, 1}).front().hash != 0; }
  [[nodiscard]] bool has_all() const;
  /// Returns true if no block is here, and none is pinned.
  [[nodiscard]] bool is_empty() const;
  /// Changes when a program drops blocks. Bytes that read() returned before the change are sound.
  /// @return kDropping: a program drops blocks now.
  [[nodiscard]] std::uint64_t generation() const;
  static constexpr std::uint64_t kDropping = 0;
  /// A program that drops blocks for longer is stopped.
  static constexpr std::chrono::milliseconds kDropPatience{2'000};
  /// Reads the table. Entries that can't be read are 0.
  [[nodiscard]] std::vector<Entry> entries(Blocks blocks) const;
  /// Calls `take(block, entry)` for each block that has an entry.
  template <class Take>
  void each_entry(const Take& take) const;
  /// Returns true if a user has proven the whole file, and nothing was dropped since.
  [[nodiscard]] bool is_whole_proven() const;
  /// @param generation  from before the first byte of the proof was read.
  void note_whole_proven(std::uint64_t generation) const;
  enum class Found : std::uint8_t { Right, Missing, Wrong };
  /// Compares a block with its entry, and notes that a program uses it.
  [[nodiscard]] Found prove(std::uint64_t block) const;
  /// Writes whole blocks, then their entries.
  /// @param bytes  from the start of block `first`.
  [[nodiscard]] Result<void> write(std::uint64_t first, std::span<const std::byte> bytes) const;
  /// @return EIO: the local file ends before the range does.
  [[nodiscard]] Result<void> read(std::span<std::byte> to, std::uint64_t offset) const;
  /// The pins of dropped blocks. Go: a drop ends them. Stay: blocks that come again are pinned. Spare: pinned
  /// blocks are not dropped.
  enum class Pins : std::uint8_t { Go, Stay, Spare };
  /// Frees the space of blocks, and empties their entries.
  /// @return false: a program that is stopped is dropping blocks. Nothing is dropped.
  bool drop(std::span<const Blocks> runs, Pins pins = Pins::Go) const;
  /// Pins the blocks that are here, or ends their pins.
  /// @return false: some are not here, or can't be pinned.
  bool set_pinned(Blocks blocks, bool is_pinned) const;
  /// Notes whether the file is read with a token, keys or a signature.
  void set_private(bool is_private) const;
  [[nodiscard]] bool is_private() const;

  /// Keeps other programs from fetching the blocks at the same time. The lock ends with the program.
  [[nodiscard]] bool try_lock(Blocks blocks) const;
  void unlock(Blocks blocks) const;
  /// Returns true if another program, or another opening of this one, has the file open.
  [[nodiscard]] bool is_in_use() const;
  /// Returns true if other programs find the file by its address.
  [[nodiscard]] bool is_shared() const { return !identity_.address.empty(); }

 private:
  BlockFile(UniqueFd file, Identity identity);
  /// Nothing if the file has no sound header.
  static std::unique_ptr<BlockFile> from(UniqueFd file);
  static Result<void> fill_header(int file, const Identity& identity);
  [[nodiscard]] std::uint64_t entry_at(std::uint64_t block) const;
  /// Returns a block at or after this one: before it there is no further entry. Nothing: there is none.
  [[nodiscard]] std::optional<std::uint64_t> next_entry(std::uint64_t block) const;
  [[nodiscard]] std::uint64_t stored_generation() const;
  bool store_generation(std::uint64_t generation) const REQUIRES(dropping_);
  Result<void> empty(Blocks run, Pins pins) const;

  static constexpr std::uint64_t kStepBlocks = 4096;  // whose entries are in memory at a time

  const UniqueFd file_;
  const Identity identity_;
  const std::uint64_t data_at_;
  mutable Mutex dropping_;  // guards the generation in the file, with the lock of a byte for other programs
};

/// The present time as an entry has it.
std::uint32_t minutes_now();

/// The directory of the shared files, in cache_directory().
Result<UniqueFd> open_block_directory();

template <class Take>
void BlockFile::each_entry(const Take& take) const {
  // Most of the table of a large file is a hole.
  for (auto next = next_entry(0); next && *next < count(); next = next_entry(*next + kStepBlocks)) {
    const std::uint64_t at = *next;
    const auto some = entries({at, std::min(at + kStepBlocks, count())});
    for (std::size_t index = 0; index < some.size(); ++index) {
      if (some[index].hash != 0) take(at + index, some[index]);
    }
  }
}

}  // namespace stfs
