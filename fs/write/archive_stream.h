// Receives a checkpoint from a writer, from its first byte to its last. The header is checked as soon as it
// is complete, so that a program gets the error of a wrong header before it writes the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/format/header.h"

namespace stfs {

/// The owner serializes the calls.
class ArchiveStream {
 public:
  struct Receiver {
    /// Gets the header when it is complete. @param text  the archive's bytes before the data.
    std::function<Result<void>(const Header&, std::string_view text)> take_header;
    /// Gets bytes of the data. @param at  the offset from the first byte of data.
    std::function<Result<void>(std::span<const std::byte> bytes, std::uint64_t at)> take_data;
    /// Gets the number of bytes before the data, before these bytes are kept. An error refuses the
    /// checkpoint. May be empty.
    std::function<Result<void>(std::uint64_t head_bytes)> take_length{};
  };

  explicit ArchiveStream(Receiver receiver) : receiver_(std::move(receiver)) {}

  /// Takes the next bytes. A part of a filler may be left out, because cp(1) skips holes, and edits leave
  /// holes in fillers. EINVAL if the bytes do not follow the last ones, are no header, or are too many. Also
  /// returns the errors of the receiver.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset);
  /// Takes a size that a program sets before its first byte, or drops all bytes (0). EINVAL for other sizes.
  Result<void> resize(std::uint64_t size_bytes);
  /// EINVAL, with the reason, unless all bytes have arrived.
  [[nodiscard]] Result<void> check() const;
  /// Drops all bytes: the stream is empty again.
  void forget();

  /// The number of bytes that have arrived.
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  /// The header; null until it is complete.
  [[nodiscard]] const Header* header() const { return header_ ? &*header_ : nullptr; }

 private:
  [[nodiscard]] tl::unexpected<Error> refuse(std::string_view why) const;
  /// True if all bytes before the offset that have not arrived are in a filler.
  [[nodiscard]] bool may_skip_to(std::uint64_t offset) const;
  /// Takes bytes of the header. @return the number of bytes taken.
  Result<std::size_t> take_head(std::span<const std::byte> from);
  Result<void> parse_head();

  const Receiver receiver_;
  std::uint64_t size_bytes_ = 0;
  std::string head_;              // until the header is complete
  std::uint64_t head_bytes_ = 0;  // of the length and the JSON
  std::uint64_t end_bytes_ = 0;   // the size of the whole archive
  std::optional<std::uint64_t> announced_bytes_;
  std::optional<Header> header_;
};

}  // namespace stfs
