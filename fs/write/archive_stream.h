// A checkpoint as it arrives from a writer, from its first byte to its last. The header is checked as soon as
// it is complete, so that a program learns of a wrong one before it has written the data.
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

/// Its owner serializes the calls.
class ArchiveStream {
 public:
  struct Receiver {
    /// Gets the header when it is complete. @param text  the archive's bytes before the data.
    std::function<Result<void>(const Header&, std::string_view text)> take_header;
    /// Gets bytes of the data. @param at  counts from the first byte of data.
    std::function<Result<void>(std::span<const std::byte> bytes, std::uint64_t at)> take_data;
  };

  explicit ArchiveStream(Receiver receiver) : receiver_(std::move(receiver)) {}

  /// Takes the next bytes. A part of a filler may be left out: cp(1) skips holes, which edits leave there.
  /// EINVAL: the bytes do not follow the last ones, are no header, or are too many. Also fails as the
  /// receiver does.
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset);
  /// Takes a size that a program sets before its first byte, or drops all bytes (0). Else EINVAL.
  Result<void> resize(std::uint64_t size_bytes);
  /// EINVAL, with the reason, unless all bytes have come.
  [[nodiscard]] Result<void> check() const;
  /// Drops all bytes: the stream is as new.
  void forget();

  /// How many bytes have come.
  [[nodiscard]] std::uint64_t size_bytes() const { return size_bytes_; }
  /// The header, once it is complete; before that, null.
  [[nodiscard]] const Header* header() const { return header_ ? &*header_ : nullptr; }

 private:
  [[nodiscard]] tl::unexpected<Error> refuse(std::string_view why) const;
  /// Whether only bytes of a filler lie before the offset that have not come.
  [[nodiscard]] bool may_skip_to(std::uint64_t offset) const;
  /// Takes bytes of the header. @return how many.
  Result<std::size_t> take_head(std::span<const std::byte> from);
  Result<void> parse_head();

  const Receiver receiver_;
  std::uint64_t size_bytes_ = 0;
  std::string head_;              // until it is complete
  std::uint64_t head_bytes_ = 0;  // its length and itself
  std::uint64_t end_bytes_ = 0;   // the size of the whole archive
  std::optional<std::uint64_t> announced_bytes_;
  std::optional<Header> header_;
};

}  // namespace stfs
