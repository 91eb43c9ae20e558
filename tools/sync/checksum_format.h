// The formats of tensors' checksums in a published version. Its index names the format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"

namespace stfs::sync {

enum class ChecksumFormat : std::uint8_t { Xxh3_128, Adler32, Blake3 };

/// Returns the name in an index: "xxh3-128", "adler32" or "blake3".
std::string_view name_of(ChecksumFormat format);
/// Reads a name. InvalidArgument (EINVAL): the name is unknown; EOPNOTSUPP: this build has no libblake3.
Result<ChecksumFormat> parse_checksum_format(std::string_view name);
/// Returns the number of hexadecimal digits of a checksum.
std::size_t hex_digits_of(ChecksumFormat format);
/// Returns true if the text is a checksum of this format: exactly hex_digits_of() hexadecimal digits, of
/// either case.
bool is_checksum(ChecksumFormat format, std::string_view text);
/// Returns true if two checksums are equal. The case of digits does not matter.
bool is_same_checksum(std::string_view a, std::string_view b);

/// Computes one checksum of bytes that arrive in pieces. Used by one thread.
class ChecksumStream {
 public:
  /// The format must be a result of parse_checksum_format(), or a format that every build has.
  explicit ChecksumStream(ChecksumFormat format);
  ~ChecksumStream();
  ChecksumStream(ChecksumStream&&) noexcept;
  ChecksumStream& operator=(ChecksumStream&&) noexcept;

  void update(std::span<const std::byte> bytes);
  /// Returns the checksum of all bytes so far, as lower-case digits. xxh3-128: 32 digits in the canonical
  /// big-endian form, like xxhash.xxh3_128_hexdigest() of Python. adler32: 8 digits. blake3: 64 digits.
  [[nodiscard]] std::string hex() const;

 private:
  class Hash;
  class Xxh3Hash;
  class Adler32Hash;
  class Blake3Hash;
  std::unique_ptr<Hash> hash_;
};

}  // namespace stfs::sync
