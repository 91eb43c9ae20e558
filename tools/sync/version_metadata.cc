// Takes the five members as texts first, then reads each.
#include "tools/sync/version_metadata.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/base/utf8.h"
#include "core/format/json_cursor.h"
#include "core/format/json_string.h"
#include "core/format/json_syntax.h"
#include "tools/sync/damage.h"

namespace stfs::sync {
namespace {

constexpr unsigned kMostLevels = 127;      // as in core/model/model_index.cc
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
  if (!taken) return pass_on(std::move(taken));
  return texts;
}

Result<std::optional<VersionNumber>> read_version(const Texts& texts, Member member) {
  if (!texts[member]) return std::optional<VersionNumber>();
  auto version = parse_version(*texts[member]);
  if (version) return version;
  return damaged("metadata.{} is {}, expected decimal digits", kNames[member], in_quotes(*texts[member]));
}

/// The text of a member that an index with delta_encoding must have.
Result<std::string_view> due(const Texts& texts, Member member) {
  if (texts[member]) return std::string_view(*texts[member]);
  return damaged("metadata has delta_encoding, but no {}", kNames[member]);
}

Result<void> check_order(const VersionNumber& base, const VersionNumber& version) {
  if (base.number < version.number) return {};
  return damaged("metadata.base_version is {}, expected a version before {}", base.text, version.text);
}

/// Whether a text is the beginning of a string, an escape or a word, and ends there.
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

bool is_cut_short(std::string_view json) {
  if (json.ends_with('\0')) return true;  // some stores show the size first
  while (!json.empty() && kSpace.find(json.back()) != kSpace.npos) json.remove_suffix(1);
  const std::size_t valid = valid_utf8_prefix(json);
  if (valid + kMostUtf8Bytes <= json.size()) return false;
  const auto error = find_json_error(json.substr(0, valid), kMostLevels);
  return error && is_token_cut_short(json.substr(error->position));
}

Result<VersionMetadata> parse_version_metadata(std::string_view json) {
  const auto texts = take_members(json);
  if (!texts) return tl::unexpected(texts.error());
  VersionMetadata metadata;
  auto version = read_version(*texts, kVersion);
  if (!version) return pass_on(std::move(version));
  metadata.version = std::move(*version);
  if (!(*texts)[kEncoding]) return metadata;

  for (const Member member : {kVersion, kBaseVersion, kCompression, kChecksum}) {
    if (auto text = due(*texts, member); !text) return pass_on(std::move(text));
  }
  auto base_version = read_version(*texts, kBaseVersion);
  if (!base_version) return pass_on(std::move(base_version));
  // Both are there: due() has looked.
  if (auto ok = check_order(base_version->value(), metadata.version.value()); !ok)
    return pass_on(std::move(ok));
  metadata.base_version = std::move(*base_version);
  const auto encoding = parse_diff_encoding(*(*texts)[kEncoding]);
  if (!encoding) return tl::unexpected(Error(encoding.error()).within("metadata.delta_encoding"));
  metadata.encoding = *encoding;
  if (*(*texts)[kCompression] != "zstd") {
    return damaged("metadata.compression_format: {} is no compression format: expected zstd",
                   in_quotes(*(*texts)[kCompression]));
  }
  const auto checksum_format = parse_checksum_format(*(*texts)[kChecksum]);
  if (!checksum_format)
    return tl::unexpected(Error(checksum_format.error()).within("metadata.checksum_format"));
  metadata.checksum_format = *checksum_format;
  return metadata;
}

}  // namespace stfs::sync
