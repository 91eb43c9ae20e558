// First takes the five members of the metadata as texts, then reads each.
#include "tools/sync/version_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/utf8.h"
#include "core/format/json_cursor.h"
#include "core/format/json_string.h"
#include "core/format/json_syntax.h"

namespace stfs::sync {
namespace {

constexpr std::string_view kDirectoryPrefix = "weight_v";
constexpr std::size_t kMostDigits = 18;    // any such number fits into 63 bits
constexpr unsigned kMostLevels = 127;      // the same as in core/model/model_index.cc
constexpr std::size_t kMostUtf8Bytes = 4;  // of one character
constexpr std::string_view kSpace = " \t\r\n";

enum Member : std::size_t { kVersion, kBaseVersion, kEncoding, kCompression, kChecksum, kMembers };
constexpr std::array<std::string_view, kMembers> kNames = {"version", "base_version", "delta_encoding",
                                                           "compression_format", "checksum_format"};
using Texts = std::array<std::optional<std::string>, kMembers>;

Result<void> take_member(JsonCursor& json, std::string_view key, Texts& texts) {
  for (std::size_t member = 0; member < kMembers; ++member) {
    if (key != kNames[member]) continue;
    const std::size_t at = json.position();
    if (texts[member]) return damaged("byte {}: metadata.{} is given twice", at, key);
    if (json.peek() != '"') {
      const std::string_view value = json.take_value();
      if (value == "null") return {};
      return damaged("byte {}: metadata.{} is {}, expected a string", at, key, in_quotes(value));
    }
    std::string decoded;
    texts[member] = json.take_string(decoded);
    return {};
  }
  json.take_value();
  return {};
}

Result<Texts> take_members(std::string_view text) {
  if (const auto error = find_json_error(text, kMostLevels))
    return damaged("byte {}: not JSON: {}", error->position, error->why);
  Texts texts;
  JsonCursor json(text);
  if (json.peek() != '{') return damaged("byte {}: the index is not a JSON object", json.position());
  auto taken = json.for_each_member([&](std::string_view key, std::size_t) -> Result<void> {
    if (key == "metadata" && json.peek() == '{') {
      return json.for_each_member(
          [&](std::string_view inner, std::size_t) { return take_member(json, inner, texts); });
    }
    json.take_value();
    return {};
  });
  RETURN_IF_ERROR(taken);
  return texts;
}

Result<std::optional<VersionNumber>> read_version(const Texts& texts, Member member) {
  if (!texts[member]) return std::optional<VersionNumber>();
  auto version = parse_version(*texts[member]);
  if (version) return version;
  return damaged("metadata.{} is {}, expected decimal digits", kNames[member], in_quotes(*texts[member]));
}

/// Returns true if a text is the beginning of a string, an escape or a word, and ends there.
bool is_token_cut_short(std::string_view text) {
  constexpr std::size_t kMostEscapeBytes = 12;  // a surrogate pair
  if (text.empty()) return true;
  if (text.front() == '"') {
    std::size_t at = text.find_first_of("\"\\", 1);
    while (at != text.npos && text[at] == '\\') at = text.find_first_of("\"\\", at + 2);
    return at == text.npos;
  }
  if (text.front() == '\\') {
    return text.size() < kMostEscapeBytes && text.find_first_not_of("\\u0123456789abcdefABCDEF") == text.npos;
  }
  const std::array<std::string_view, 3> words = {"true", "false", "null"};
  return std::ranges::any_of(words, [&](std::string_view word) { return word.starts_with(text); });
}

}  // namespace

std::optional<VersionNumber> parse_version(std::string_view text) {
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  if (text.empty() || text.size() > kMostDigits) return std::nullopt;
  const auto read = std::from_chars(text.data(), end, number);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return VersionNumber{std::string(text), number};
}

std::string version_text(std::uint64_t number) {
  return fmt::format("{:06}", number);
}

std::string version_directory_name(std::uint64_t number) {
  return std::string(kDirectoryPrefix) + version_text(number);
}

std::optional<VersionNumber> version_of_directory(std::string_view file_name) {
  if (!file_name.starts_with(kDirectoryPrefix)) return std::nullopt;
  auto version = parse_version(file_name.substr(kDirectoryPrefix.size()));
  if (!version || file_name != version_directory_name(version->number)) return std::nullopt;
  return version;
}

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

bool is_cut_short(std::string_view json) {
  if (json.ends_with('\0')) return true;  // some stores show the size first
  while (!json.empty() && kSpace.find(json.back()) != kSpace.npos) json.remove_suffix(1);
  const std::size_t valid = valid_utf8_prefix(json);
  if (valid + kMostUtf8Bytes <= json.size()) return false;
  const auto error = find_json_error(json.substr(0, valid), kMostLevels);
  return error && is_token_cut_short(json.substr(error->position));
}

Result<VersionMetadata> parse_version_metadata(std::string_view json) {
  const auto taken = take_members(json);
  RETURN_IF_ERROR(taken);
  const Texts& texts = *taken;
  VersionMetadata metadata;
  auto version = read_version(texts, kVersion);
  RETURN_IF_ERROR(version);
  metadata.version = std::move(*version);
  if (!texts[kEncoding]) return metadata;

  for (const Member member : {kVersion, kBaseVersion, kCompression, kChecksum}) {
    if (!texts[member]) return damaged("metadata has delta_encoding, but no {}", kNames[member]);
  }
  auto base_version = read_version(texts, kBaseVersion);
  RETURN_IF_ERROR(base_version);
  metadata.base_version = std::move(*base_version);
  if (metadata.base_version.value().number >= metadata.version.value().number) {
    return damaged("metadata.base_version is {}, expected a version before {}", metadata.base_version->text,
                   metadata.version->text);
  }
  auto encoding = parse_diff_encoding(*texts[kEncoding]);
  if (!encoding) return tl::unexpected(std::move(encoding).error().within("metadata.delta_encoding"));
  metadata.encoding = *encoding;
  if (*texts[kCompression] != "zstd") {
    return damaged("metadata.compression_format: {} is no compression format: expected zstd",
                   in_quotes(*texts[kCompression]));
  }
  auto checksum_format = parse_checksum_format(*texts[kChecksum]);
  if (!checksum_format)
    return tl::unexpected(std::move(checksum_format).error().within("metadata.checksum_format"));
  metadata.checksum_format = *checksum_format;
  return metadata;
}

}  // namespace stfs::sync
