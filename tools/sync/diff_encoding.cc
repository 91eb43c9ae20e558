// The names of the encodings, and the operation of xor.
#include "tools/sync/diff_encoding.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "core/format/json_string.h"

namespace stfs::sync {

std::string_view name_of(DiffEncoding encoding) {
  return encoding == DiffEncoding::Xor ? "xor" : "overwrite";
}

Result<DiffEncoding> parse_diff_encoding(std::string_view name) {
  if (name == "xor") return DiffEncoding::Xor;
  if (name == "overwrite") return DiffEncoding::Overwrite;
  return fail(ErrorCode::InvalidArgument, EINVAL,
              in_quotes(name) + " is no encoding: expected xor or overwrite");
}

bool xor_into(std::span<std::byte> bytes, std::span<const std::byte> diff) {
  if (std::ranges::all_of(diff, [](std::byte byte) { return byte == std::byte{}; })) return false;
  std::size_t at = 0;
  for (std::uint64_t word = 0, bits = 0; at + sizeof word <= bytes.size(); at += sizeof word) {
    std::memcpy(&word, bytes.data() + at, sizeof word);
    std::memcpy(&bits, diff.data() + at, sizeof bits);
    word ^= bits;
    std::memcpy(bytes.data() + at, &word, sizeof word);
  }
  for (; at < bytes.size(); ++at) bytes[at] ^= diff[at];
  return true;
}

}  // namespace stfs::sync
