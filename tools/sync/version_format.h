// The format of a published version, for its publisher and its receivers: names and numbers of versions, the
// metadata of an index, and the encodings of diffs. published_version.h lists the files of a version.
//
// Both encodings describe raw bytes, whatever the dtype:
//
//   xor        new ^ old, as long as the tensor. Applied twice, it restores the old bytes.
//   overwrite  u32 count, then `count` positions of bytes (u32, strictly ascending), then the `count` new
//              bytes at these positions. All numbers are little-endian.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "tools/sync/checksum_format.h"

namespace stfs::sync {

/// The index of a version's directory. Its publisher writes it last.
inline constexpr std::string_view kVersionIndex = "model.safetensors.index.json";
/// The suffix of a file that is being written.
inline constexpr std::string_view kTemporaryEnd = ".tmp";

/// A version number in the form that its publisher wrote.
struct VersionNumber {
  std::string text;
  std::uint64_t number = 0;
};

/// Reads a number of decimal digits, with any number of zeros in front. Nothing for other texts, and for more
/// than 18 digits.
std::optional<VersionNumber> parse_version(std::string_view text);
/// Returns the text of a version, "000042".
std::string version_text(std::uint64_t number);
/// Returns the name of a version's directory, "weight_v000042".
std::string version_directory_name(std::uint64_t number);
/// Returns the version of a directory's file name, which must be a name from version_directory_name().
/// Nothing for other names.
std::optional<VersionNumber> version_of_directory(std::string_view file_name);

enum class DiffEncoding : std::uint8_t { Xor, Overwrite };

/// Returns the name in an index: "xor" or "overwrite".
std::string_view name_of(DiffEncoding encoding);
/// Reads a name. InvalidArgument (EINVAL): the name is unknown.
Result<DiffEncoding> parse_diff_encoding(std::string_view name);

/// Returns the size of an overwrite diff of this many changed bytes.
constexpr std::uint64_t overwrite_size_bytes(std::uint64_t count) {
  return 4 + 5 * count;
}
/// Overwrite diffs can reach only the first bytes of a larger tensor, because positions have 32 bits.
inline constexpr std::uint64_t kMostOverwriteBytes = std::uint64_t{1} << 32U;

/// XORs `diff` into `bytes`, of the same size. The two must not overlap.
/// @return true if any byte of `bytes` has changed, that is, if any byte of `diff` is not zero.
bool xor_into(std::span<std::byte> bytes, std::span<const std::byte> diff);

/// Reads bytes of a tensor or a frame, from `offset` on, until `to` is full. All of these bytes exist. Any
/// number of threads may call.
using ReadPiece = std::function<Result<void>(std::uint64_t offset, std::span<std::byte> to)>;

/// A published diff: one zstd frame. `read` refers to the frame's archive.
struct CompressedDiff {
  std::uint64_t size_bytes = 0;
  ReadPiece read{};
};

/// The metadata of an index.
struct VersionMetadata {
  std::optional<VersionNumber> version{};
  std::optional<VersionNumber> base_version{};
  /// Nothing: the index is of a full checkpoint. Then only the version may be set.
  std::optional<DiffEncoding> encoding{};
  ChecksumFormat checksum_format = ChecksumFormat::Xxh3_128;
};

/// Returns true if the text is the beginning of a JSON text, or has no content yet: some stores first show a
/// file's name and size.
bool is_cut_short(std::string_view json);
/// Reads metadata of an index. Ignores unknown members. An index with delta_encoding must have all members
/// that published_version.h lists, and base_version must be smaller than version.
/// @param json  any text.
/// @return EINVAL: the text is no JSON object, or a member is wrong. The message names the member, the found
///   value, and the expected value. EOPNOTSUPP: the error of parse_checksum_format().
Result<VersionMetadata> parse_version_metadata(std::string_view json);

/// Returns the error for damaged bytes of a version: InvalidArgument (EINVAL) with this message.
template <class... Parts>
[[nodiscard]] tl::unexpected<Error> damaged(fmt::format_string<Parts...> format, Parts&&... parts) {
  return fail(ErrorCode::InvalidArgument, EINVAL, fmt::format(format, std::forward<Parts>(parts)...));
}

}  // namespace stfs::sync
