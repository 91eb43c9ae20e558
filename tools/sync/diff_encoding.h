// How a published diff tells a tensor's new bytes. Both encodings are of raw bytes, whatever the dtype.
//
//   xor        new ^ old, as long as the tensor. Applied twice, it restores the old bytes.
//   overwrite  u32 count, then `count` positions of bytes (u32, strictly ascending), then the `count` new
//              bytes at these positions. All numbers are little-endian.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "core/base/error.h"

namespace stfs::sync {

enum class DiffEncoding : std::uint8_t { Xor, Overwrite };

/// The name in an index: "xor" or "overwrite".
std::string_view name_of(DiffEncoding encoding);
/// InvalidArgument (EINVAL): the name is unknown.
Result<DiffEncoding> parse_diff_encoding(std::string_view name);

/// The size of an overwrite diff of that many changed bytes.
constexpr std::uint64_t overwrite_size_bytes(std::uint64_t count) {
  return 4 + 5 * count;
}
/// Overwrite diffs can reach only the first bytes of a larger tensor: positions have 32 bits.
inline constexpr std::uint64_t kMostOverwriteBytes = std::uint64_t{1} << 32U;

/// Reads bytes of a tensor or a frame: as many as `to` has, from `offset` on. All of them are there. Any
/// number of threads may call.
using ReadPiece = std::function<Result<void>(std::uint64_t offset, std::span<std::byte> to)>;

/// A diff as it is published: one zstd frame. Refers to the place where the frame lies.
struct CompressedDiff {
  std::uint64_t size_bytes = 0;
  ReadPiece read{};
};

/// XORs `diff` into `bytes`, of the same size. They must not overlap.
/// @return whether any byte of `bytes` has changed, that is, whether any byte of `diff` is not zero.
bool xor_into(std::span<std::byte> bytes, std::span<const std::byte> diff);

}  // namespace stfs::sync
