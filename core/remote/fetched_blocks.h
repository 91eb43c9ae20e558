// Fetches the blocks of a remote file, and reads them from the local disk (block_file.h).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/remote/block_file.h"
#include "core/remote/block_set.h"
#include "core/remote/remote_object.h"

namespace stfs {

/// Each block is fetched once, for all readers. Any thread may call.
class FetchedBlocks : public std::enable_shared_from_this<FetchedBlocks> {
 public:
  static constexpr std::uint64_t kBlockBytes = BlockFile::kBlockBytes;
  /// One request asks for at most this many bytes.
  static constexpr std::uint64_t kPartBytes = 8 << 20;

  /// @param file  for the same version as the object.
  /// @param first  the first bytes of the file, which have come already.
  static std::shared_ptr<FetchedBlocks> make(std::unique_ptr<RemoteObject> object,
                                             std::unique_ptr<BlockFile> file,
                                             std::span<const std::byte> first);

  [[nodiscard]] const RemoteObject& object() const { return *object_; }

  /// Reads a range. Waits until it has come.
  /// @param to      not empty, inside the file.
  /// @param wanted  contains the range. The rest of it is fetched too, and the call does not wait for it.
  /// @return the errors of RemoteObject::read(). EIO: the local file can't be read.
  [[nodiscard]] Result<void> read(std::span<std::byte> to, std::uint64_t offset, ByteRange wanted);
  /// Brings a range to the local file, and no byte of other blocks.
  /// @return the errors of read(). ENOSPC: the disk has no room for it.
  [[nodiscard]] Result<void> fetch(ByteRange range);
  /// The bytes and requests that fetch() would take.
  struct Missing {
    std::uint64_t size_bytes = 0;
    std::uint64_t requests = 0;
  };
  [[nodiscard]] Missing missing(ByteRange range) const;
  /// Returns true if other programs find the blocks.
  [[nodiscard]] bool is_shared() const { return file_->is_shared(); }
  /// Keeps the blocks of a range until a user drops them (block_cache.h).
  /// @return false: some are not here.
  [[nodiscard]] bool pin(ByteRange range) const;
  /// Ends all requests. Reads that wait fail (ECANCELED).
  void end();

 private:
  /// Blocks that one request brings.
  struct Part {
    std::uint64_t first = 0;
    std::uint64_t end = 0;
    bool is_over = false;
    std::optional<Error> failure{};
  };
  using Parts = std::vector<std::shared_ptr<Part>>;

  FetchedBlocks(std::unique_ptr<RemoteObject> object, std::unique_ptr<BlockFile> file);
  [[nodiscard]] std::uint64_t size_bytes() const { return object_->version().size_bytes; }
  [[nodiscard]] Blocks blocks_of(ByteRange range) const;
  [[nodiscard]] bool are_proven(Blocks blocks) const REQUIRES(mutex_);
  /// Returns true if the blocks are not all proven, or if a wanted block would be fetched.
  [[nodiscard]] bool is_any_missing(Blocks blocks, Blocks wanted) const;
  /// Returns true if a block is listed and not proven.
  [[nodiscard]] bool is_any_listed(Blocks blocks) const REQUIRES(mutex_);
  /// Proves the blocks that are listed. A block that is wrong must be fetched again.
  /// @return false: a wrong block can't be dropped.
  bool prove(Blocks blocks);
  /// Makes parts of the blocks that are missing and not coming.
  [[nodiscard]] Parts begin(Blocks blocks) const REQUIRES(mutex_);
  /// Gives the parts to the workers.
  /// @param is_needed  whether a read waits for them.
  void post(const Parts& parts, bool is_needed) REQUIRES(mutex_);
  /// Waits until the blocks are in the local file.
  /// @return the generation for which they are proven. Nothing: the disk has no room for them.
  Result<std::optional<std::uint64_t>> bring(Blocks blocks, Blocks wanted);
  [[nodiscard]] std::uint64_t known_generation() const;
  /// Takes another generation for the known one: all blocks must be proven again.
  void adopt(std::uint64_t generation);
  /// Returns true if the caller's read must end: the file is closed, or the reader has been killed.
  [[nodiscard]] bool is_given_up() const;
  void fetch_part(Part& part, HttpConnection& connection);
  /// Fetches the blocks that no other program has fetched.
  [[nodiscard]] Result<void> fetch_missing(Blocks blocks, HttpConnection& connection);
  /// Waits while another program fetches the blocks.
  /// @return true if this program has the lock of the blocks now.
  [[nodiscard]] bool wait_for_others(Blocks blocks) const;
  /// Returns false if the disk is nearly full.
  [[nodiscard]] bool has_room() const;
  /// Writes whole blocks to the local file. ENOSPC without room.
  [[nodiscard]] Result<void> keep(std::uint64_t first, std::span<const std::byte> bytes) const;
  /// Reads from the server to the caller alone.
  [[nodiscard]] Result<void> read_past(std::span<std::byte> to, std::uint64_t offset) const;

  const std::unique_ptr<RemoteObject> object_;
  const std::unique_ptr<BlockFile> file_;
  std::vector<std::byte> whole_;  // constant after make(): a small file for which the disk has no room
  std::atomic<bool> is_ending_ = false;
  mutable Mutex mutex_;
  Condition part_ends_;
  BlockSet listed_ GUARDED_BY(mutex_);  // the local file seems to have them
  BlockSet proven_ GUARDED_BY(mutex_);  // since the file has generation_
  std::uint64_t generation_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::shared_ptr<Part>> coming_ GUARDED_BY(mutex_);  // by first block
  pid_t owner_ GUARDED_BY(mutex_);  // the process whose workers fetch what is coming
};

}  // namespace stfs
