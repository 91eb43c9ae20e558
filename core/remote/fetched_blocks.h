// The bytes of a remote file that have come so far: a sparse file without a name on the local disk, and a
// note for each block of it.
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
#include "core/base/unique_fd.h"
#include "core/remote/remote_object.h"

namespace stfs {

/// Each block is fetched once, for all readers. Any thread may call.
class FetchedBlocks : public std::enable_shared_from_this<FetchedBlocks> {
 public:
  static constexpr std::uint64_t kBlockBytes = 256 << 10;
  /// One request asks for at most this many bytes.
  static constexpr std::uint64_t kPartBytes = 8 << 20;

  /// @param first  the first bytes of the file, which have come already.
  /// @return the error of making the file.
  static Result<std::shared_ptr<FetchedBlocks>> make(std::unique_ptr<RemoteObject> object,
                                                     std::span<const std::byte> first);

  [[nodiscard]] const RemoteObject& object() const { return *object_; }

  /// Reads a range. Waits until it has come.
  /// @param to      not empty, inside the file.
  /// @param wanted  contains the range. The rest of it is fetched too, and the call does not wait for it.
  /// @return the errors of RemoteObject::read(). EIO: the local file can't be read.
  [[nodiscard]] Result<void> read(std::span<std::byte> to, std::uint64_t offset, ByteRange wanted);
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

  FetchedBlocks(std::unique_ptr<RemoteObject> object, UniqueFd file);
  [[nodiscard]] std::uint64_t size_bytes() const { return object_->version().size_bytes; }
  [[nodiscard]] ByteRange bytes_of(const Part& part) const;
  /// Blocks [first, end).
  struct Blocks {
    std::uint64_t first = 0;
    std::uint64_t end = 0;
  };
  [[nodiscard]] Blocks blocks_of(ByteRange range) const;
  [[nodiscard]] bool are_here(Blocks blocks) const REQUIRES(mutex_);
  /// Makes parts of the blocks that are missing and not coming.
  [[nodiscard]] Parts begin(Blocks blocks) const REQUIRES(mutex_);
  /// Gives the parts to the workers.
  /// @param is_needed  whether a read waits for them.
  void post(const Parts& parts, bool is_needed) REQUIRES(mutex_);
  /// Waits until the blocks are in the local file.
  /// @return false if the disk has no room for them.
  Result<bool> bring(Blocks blocks, Blocks wanted);
  /// Returns true if the caller's read must end: the file is closed, or the reader has been killed.
  [[nodiscard]] bool is_given_up() const;
  void fetch(Part& part, HttpConnection& connection);
  /// Returns false if the disk is nearly full.
  [[nodiscard]] bool has_room() const;
  /// Writes bytes to the local file. ENOSPC without room.
  [[nodiscard]] Result<void> keep(std::span<const std::byte> bytes, std::uint64_t offset) const;

  const std::unique_ptr<RemoteObject> object_;
  const UniqueFd file_;
  std::vector<std::byte> whole_;  // constant after make(): a small file for which the disk has no room
  std::atomic<bool> is_ending_ = false;
  mutable Mutex mutex_;
  Condition part_ends_;
  std::vector<bool> is_here_ GUARDED_BY(mutex_);                              // by block
  std::map<std::uint64_t, std::shared_ptr<Part>> coming_ GUARDED_BY(mutex_);  // by first block
  pid_t owner_ GUARDED_BY(mutex_);  // the process whose workers fetch what is coming
};

}  // namespace stfs
