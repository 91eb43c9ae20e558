// From bytes to tokens: what has to be settled around nlohmann_json.
//
// What it lets through and the reference's serde does not is refused here: a BOM, and a NUL byte, which
// it takes for the end of the input. And it must not be let into long tokens unawares (json_syntax.h).
#include "core/format/header_parser.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "core/base/utf8.h"
#include "core/format/header_cursor.h"
#include "core/format/header_handler.h"
#include "core/format/json_syntax.h"

namespace stfs {
namespace {

// Longest token, white space before it included, that nlohmann_json may put into a message.
constexpr std::size_t kCitedTokenBytes = 1 << 20;

tl::unexpected<Error> refused(std::string_view json, std::string why) {
  // The reference looks at the encoding of the whole header first (check 4); nlohmann_json has looked
  // at that of the strings read so far, so that only a refused header needs another look.
  const std::size_t valid = valid_utf8_prefix(json);
  if (valid == json.size()) {
    return fail(ErrorCode::InvalidHeaderDeserialization, EINVAL, std::move(why));
  }
  return fail(
      ErrorCode::InvalidHeader, EINVAL,
      fmt::format("byte {}: 0x{:02x} is not UTF-8 here", valid, static_cast<std::uint8_t>(json[valid])));
}

std::optional<std::string> syntax_error(std::string_view json) {
  const std::optional<JsonError> error = find_json_error(json, kMaxHeaderDepth);
  if (!error) return std::nullopt;
  return fmt::format("byte {}: not JSON: {}", error->position, error->why);
}

// Reads the header, its tokens no longer than the limit, white space before each included; `starved`
// tells that one is longer, and then nothing else is known.
Result<ParsedHeader> parse_tokens(std::string_view json, std::size_t token_limit_bytes, bool& starved) {
  HeaderProgress progress{json.data(), json.data() + json.size(), token_limit_bytes};
  progress.token_read();
  HeaderHandler handler(json, progress);
  const bool ok = nlohmann::json::sax_parse(HeaderCursor(progress), HeaderCursor(progress), &handler);
  starved = progress.starved;
  if (starved) return fail(ErrorCode::InvalidHeaderDeserialization, EINVAL, "a very long token");
  if (ok) return handler.take();
  if (!handler.why().empty()) return refused(json, handler.why());
  // Where nothing is wrong with the grammar, a floating-point number is too large for a double.
  return refused(json, syntax_error(json).value_or(fmt::format("byte {}: not JSON: a number out of range",
                                                               progress.at - json.data() - 1)));
}

}  // namespace

std::uint64_t opening_quote(std::string_view json, std::uint64_t end) {
  // Every quote inside a string follows an odd number of backslashes; the opening one follows none.
  std::uint64_t at = end - 1;
  while (at > 0) {
    if (json[--at] != '"') continue;
    std::uint64_t backslashes = 0;
    while (backslashes < at && json[at - 1 - backslashes] == '\\') ++backslashes;
    if (backslashes % 2 == 0) break;
  }
  return at;
}

Result<ParsedHeader> parse_header_json(std::string_view json) {
  if (json.empty()) return refused(json, "the header is empty, where a JSON object is due");
  if (json.substr(0, 3) == "\xEF\xBB\xBF") return refused(json, "byte 0: a byte order mark before the JSON");
  if (const std::size_t nul = json.find('\0'); nul != json.npos) {
    return refused(json, fmt::format("byte {}: a NUL byte", nul));
  }
  // Padding may be long; it is no part of a token.
  json = json.substr(0, json.find_last_not_of(" \t\n\r") + 1);
  bool starved = false;
  auto parsed = parse_tokens(json, kCitedTokenBytes, starved);
  if (!starved) return parsed;
  // nlohmann_json must not come to refuse a token of this length (json_syntax.h).
  if (auto error = syntax_error(json)) return refused(json, std::move(*error));
  return parse_tokens(json, json.size(), starved);
}

}  // namespace stfs
