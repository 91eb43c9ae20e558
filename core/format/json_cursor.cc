#include "core/format/json_cursor.h"

#include <charconv>

#include "core/format/json_string.h"

namespace stfs {

std::string_view JsonCursor::take_string(std::string& decoded) {
  const std::size_t begin = at_;
  skip_string();
  if (at_ - begin < 2) return {};  // the text ends here
  const std::string_view inside = text_.substr(begin + 1, at_ - begin - 2);
  if (inside.find('\\') == inside.npos) return inside;
  decoded = unescaped_json(inside);
  return decoded;
}

void JsonCursor::skip_string() {
  const std::size_t begin = at_;
  std::size_t backslashes = 0;
  do {
    at_ = text_.find('"', at_ + 1);
    if (at_ == text_.npos) {
      at_ = text_.size();
      return;
    }
    // A quote inside the string follows an odd number of backslashes.
    for (backslashes = 0; text_[at_ - 1 - backslashes] == '\\' && at_ - 1 - backslashes > begin;)
      ++backslashes;
  } while (backslashes % 2 != 0);
  ++at_;
}

std::string_view JsonCursor::take_value() {
  const std::size_t begin = at_;
  std::size_t depth = 0;
  do {
    switch (peek()) {
      case '"': skip_string(); break;
      case '{':
      case '[': ++depth, ++at_; break;
      case '}':
      case ']': --depth, ++at_; break;
      case ',':
      case ':': ++at_; break;
      default: at_ = std::min(text_.find_first_of(",:]} \t\n\r", at_), text_.size()); break;
    }
    if (depth != 0) skip_space();
  } while (depth != 0 && !is_at_end());
  return text_.substr(begin, at_ - begin);
}

std::optional<std::uint64_t> JsonCursor::take_whole_number() {
  const std::string_view token = take_value();
  std::uint64_t number = 0;
  const char* end = token.data() + token.size();
  const auto [at, error] = std::from_chars(token.data(), end, number);
  if (error != std::errc{} || at != end) return std::nullopt;
  return number;
}

}  // namespace stfs
