// Runs nlohmann_json over a header, with extra checks around it.
//
// It accepts two things that the reference's serde refuses, so they are refused here: a BOM, and a NUL byte,
// which it takes for the end of the input. It must also not read long tokens without a limit (json_syntax.h).
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

// The longest token, with the white space before it, that nlohmann_json may put into a message.
constexpr std::size_t kCitedTokenBytes = 1 << 20;

tl::unexpected<Error> refused(std::string_view json, std::string why) {
  // The reference checks the encoding of the whole header first (check 4). nlohmann_json has checked only the
  // strings that it has read, so a refused header needs a check of the whole text.
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

// Reads the header if no token, with the white space before it, is longer than the limit. Otherwise sets
// `starved`, and the result says nothing else.
Result<ParsedHeader> parse_tokens(std::string_view json, std::size_t token_limit_bytes, bool& starved) {
  HeaderProgress progress{json.data(), json.data() + json.size(), token_limit_bytes};
  progress.token_read();
  HeaderHandler handler(json, progress);
  const bool ok = nlohmann::json::sax_parse(HeaderCursor(progress), HeaderCursor(progress), &handler);
  starved = progress.starved;
  if (starved) return fail(ErrorCode::InvalidHeaderDeserialization, EINVAL, "a very long token");
  if (ok) return handler.take();
  if (!handler.why().empty()) return refused(json, handler.why());
  // If the grammar is correct, a floating-point number is too large for a double.
  return refused(json, syntax_error(json).value_or(fmt::format("byte {}: not JSON: a number out of range",
                                                               progress.at - json.data() - 1)));
}

}  // namespace

std::uint64_t opening_quote(std::string_view json, std::uint64_t end) {
  // Every quote inside a string follows an odd number of backslashes. The opening quote follows none.
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
  // The padding may be long. It is not part of a token.
  json = json.substr(0, json.find_last_not_of(" \t\n\r") + 1);
  bool starved = false;
  auto parsed = parse_tokens(json, kCitedTokenBytes, starved);
  if (!starved) return parsed;
  // nlohmann_json must not refuse a token of this length itself (json_syntax.h), so look for an error first.
  if (auto error = syntax_error(json)) return refused(json, std::move(*error));
  return parse_tokens(json, json.size(), starved);
}

}  // namespace stfs
