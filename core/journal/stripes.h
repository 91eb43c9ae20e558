// A large content on its way into a journal, through a few small files: a stripe to each in turn.
//
//     the writer:    0  1  2  3  4  5  6  7  8 ...        stripes, in order
//     file 0:        0     2     4  |  6     8            a ring of slots: stripe 6 takes the pages of stripe
//     0 file 1:           1     3     5  |  7               once the journal has that
//
// A file system lets one write at a time into a file, and some take longer for that than a program takes to
// give the bytes; and new pages cost those as much as the bytes. Here several writes go side by side, into
// pages that are there. The journal gets each stripe's blocks before its pages are written anew: shared, not
// copied, so this is for file systems that share blocks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/storage/file.h"
#include "core/storage/writeback.h"

namespace stfs {

/// Offsets are those of the journal. For one content at a time, from begin() to finish(); all calls but
/// write() are one thread's at a time. After an error all give it, until the next content begins.
class Stripes {
 public:
  /// @param journal  outlives it, and has no head yet: that block is changed.
  /// @param content_bytes  for so much space is reserved, at most once round the ring.
  /// @return null where its file system does not share blocks, has no unnamed files, or wants one file.
  static Result<std::unique_ptr<Stripes>> open(Storage& storage, File& journal,
                                               const std::filesystem::path& journal_path,
                                               std::uint64_t content_bytes);

  /// What was not finished is forgotten, as far as the journal does not have it.
  void begin(std::uint64_t offset);
  /// Where the next byte belongs.
  [[nodiscard]] std::uint64_t next() const { return next_; }
  /// So many bytes are about to be written there. They have to be: others wait for them.
  void expect(std::uint64_t size_bytes) { next_ += size_bytes; }
  /// Of bytes that are expected. Any number of threads at a time, beside expect(); waits for earlier ones
  /// where the ring is full.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset);
  /// All that was expected is written: then the journal has it, as durable as its own bytes after its next
  /// sync.
  Result<void> finish();

  /// One of its files, or null when all are taken: closing them takes its time.
  [[nodiscard]] std::unique_ptr<File> take_file();

 private:
  struct Member {
    std::unique_ptr<File> file;
    std::mutex turn;  // guards what follows; the kernel's own lock lets a processor spin until its turn comes
    std::condition_variable changed;
    std::uint64_t oldest = 0;           // of its stripes, the first that the journal does not have
    std::vector<std::uint64_t> filled;  // bytes of the stripe in each slot
    Writeback writeback;                // ends before the file
  };
  /// The nth one of a file's stripes.
  struct Stripe {
    std::size_t file = 0;
    std::uint64_t number = 0;
    ByteRange range;  // in the journal
  };
  Stripes(Striping form, File& journal) : form_(form), journal_(journal) {}
  [[nodiscard]] Stripe stripe_of(std::size_t file, std::uint64_t number) const;
  [[nodiscard]] Stripe stripe_at(std::uint64_t offset) const;
  [[nodiscard]] std::uint64_t slot_of(const Stripe& stripe) const { return stripe.number % form_.slots; }
  /// Of a byte, in its file.
  [[nodiscard]] std::uint64_t place_of(const Stripe& stripe, std::uint64_t offset) const {
    return slot_of(stripe) * form_.stripe_bytes + offset % form_.stripe_bytes;
  }
  Result<void> put(const Stripe& stripe, std::span<const std::byte> from, std::uint64_t offset);
  Result<void> make_room(const Stripe& stripe, std::unique_lock<std::mutex>& turn);
  Result<void> hand_over_rest();
  Result<void> hand_over(const Stripe& stripe, ByteRange range);
  Result<void> copy(const Stripe& stripe, ByteRange range);
  Result<void> fail(Result<void> failed);
  [[nodiscard]] Result<void> failure() const;

  const Striping form_;
  File& journal_;
  std::vector<std::unique_ptr<Member>> members_;
  std::uint64_t begin_ = 0;
  std::uint64_t next_ = 0;
  std::atomic<bool> has_failed_ = false;
  mutable std::mutex failure_mutex_;  // guards what follows
  std::optional<Error> failure_;
};

}  // namespace stfs
