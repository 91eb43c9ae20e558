// Large contents on their way into a journal, spread over several files: a stripe to each in turn.
//
// A file system lets one write at a time into a file, and some take longer for that than a program takes to
// give the bytes. The journal gets the blocks when it is sealed: shared, not copied, so this is for file
// systems that share blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/byte_range.h"
#include "core/error.h"
#include "core/file.h"
#include "core/writeback.h"

namespace stfs {

/// Offsets are those of the journal. Any number of threads may write to places that do not overlap; the other
/// calls are one thread's, while nobody writes.
class Stripes {
 public:
  /// @param journal  what open() is to share blocks with; a block at `probe` is changed.
  /// @return null where its file system does not share blocks, has no unnamed files, or wants one file.
  static Result<std::unique_ptr<Stripes>> open(Storage& storage, File& journal,
                                               const std::filesystem::path& journal_path,
                                               std::uint64_t probe);

  Result<void> write(std::span<const std::byte> from, std::uint64_t offset);
  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const;
  Result<void> reserve(ByteRange range);
  /// Makes the journal share these blocks. What was written before is as durable as the journal's own bytes
  /// after its next sync.
  Result<void> share_with(File& journal, ByteRange blocks);

  /// One of its files, or null when all are taken: closing them takes its time.
  [[nodiscard]] std::unique_ptr<File> take_file();

 private:
  explicit Stripes(Striping form) : form_(form) {}
  struct Member {
    std::unique_ptr<File> file;
    // A file's writers take turns here: the kernel's own lock lets a processor spin until its turn comes.
    std::mutex turn;
    Writeback writeback;  // ends before the file
  };
  /// Of one stripe.
  struct Place {
    Member* member = nullptr;
    std::uint64_t offset = 0;
  };
  [[nodiscard]] Place place_of(std::uint64_t offset) const;
  template <class Visit>
  Result<void> for_each_stripe(ByteRange range, const Visit& visit) const;

  const Striping form_;
  std::vector<std::unique_ptr<Member>> members_;
};

}  // namespace stfs
