// A recursive-descent parser of RFC 8259 with one function per grammar rule. A function returns false at the
// first error, with the reason in error_.
#include "core/format/json_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <utility>

#include "core/format/json_string.h"

namespace stfs {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_hex(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/// Returns true if a number in JSON's form is too large for a double.
bool is_beyond_double(std::string_view number) {
  constexpr std::size_t kSafeDigits = 308;  // of any number without an exponent
  const std::size_t exponent_at = number.find_first_of("eE");
  if (exponent_at == number.npos && number.size() <= kSafeDigits) return false;
  double value = 0;
  const char* end = number.data() + number.size();
  if (std::from_chars(number.data(), end, value).ec != std::errc::result_out_of_range) return false;
  // The number is too large, or too close to 0, which is no error. The place of its first digit above 0
  // decides.
  const std::string_view mantissa = number.substr(0, exponent_at);
  const auto point = static_cast<std::int64_t>(std::min(mantissa.find('.'), mantissa.size()));
  const auto first = static_cast<std::int64_t>(mantissa.find_first_of("123456789"));
  std::int64_t exponent = 0;
  if (exponent_at != number.npos) {
    std::string_view digits = number.substr(exponent_at + 1);
    if (digits.front() == '+') digits.remove_prefix(1);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    if (read.ec != std::errc()) return digits.front() != '-';
  }
  return point - first + exponent > 0;
}

class Checker {
 public:
  Checker(std::string_view text, unsigned max_depth, Numbers numbers)
      : text_(text), depth_left_(max_depth), numbers_(numbers) {}

  std::optional<JsonError> check() {
    if (text_.starts_with("\xEF\xBB\xBF")) {
      stop("a byte order mark before the JSON");
    } else if (value()) {
      skip_space();
      if (at_ != text_.size()) stop("more text after the end");
    }
    return std::move(error_);
  }

 private:
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\n\r", at_), text_.size()); }
  bool take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool stop(std::string why) {
    error_ = JsonError{at_, std::move(why)};
    return false;
  }
  bool stop_at(std::size_t at, std::string why) {
    at_ = at;
    return stop(std::move(why));
  }
  /// If the first character begins no value, the text may be any file, and private: the message shows no
  /// bytes.
  bool unexpected(std::string_view due) {
    if (at_ == first_ && at_ < text_.size()) return stop(fmt::format("expected {}", due));
    if (at_ == text_.size()) return stop(fmt::format("the text ends, expected {}", due));
    return stop(fmt::format("found {}, expected {}", in_quotes(text_.substr(at_, 1)), due));
  }

  bool value();
  bool object();
  bool array();
  bool string();
  bool escape();
  bool unicode_escape();
  bool code_unit(unsigned& unit);
  bool number();
  bool digits();
  bool literal(std::string_view word);

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t first_ = std::min(text_.find_first_not_of(" \t\n\r"), text_.size());
  unsigned depth_left_;
  Numbers numbers_;
  std::optional<JsonError> error_;
};

bool Checker::value() {
  skip_space();
  switch (peek()) {
    case '{': return object();
    case '[': return array();
    case '"': return string();
    case 't': return literal("true");
    case 'f': return literal("false");
    case 'n': return literal("null");
    default: break;
  }
  if (peek() == '-' || is_digit(peek())) return number();
  return unexpected("a value");
}

bool Checker::object() {
  if (depth_left_ == 0) return stop("nested too deeply");
  --depth_left_;
  ++at_;
  skip_space();
  if (!take('}')) {
    do {
      skip_space();
      if (peek() != '"') return unexpected("a name in quotes");
      if (!string()) return false;
      skip_space();
      if (!take(':')) return unexpected("a colon");
      if (!value()) return false;
      skip_space();
    } while (take(','));
    if (!take('}')) return unexpected("a comma or a closing brace");
  }
  ++depth_left_;
  return true;
}

bool Checker::array() {
  if (depth_left_ == 0) return stop("nested too deeply");
  --depth_left_;
  ++at_;
  skip_space();
  if (!take(']')) {
    do {
      if (!value()) return false;
      skip_space();
    } while (take(','));
    if (!take(']')) return unexpected("a comma or a closing bracket");
  }
  ++depth_left_;
  return true;
}

bool Checker::string() {
  const std::size_t begin = at_++;
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (static_cast<unsigned char>(c) < 0x20) return stop("a control character in a string");
    if (c == '\\') {
      if (!escape()) return false;
      continue;
    }
    ++at_;
    if (c == '"') return true;
  }
  return stop_at(begin, "a string that does not end");
}

bool Checker::escape() {
  const std::size_t begin = at_++;
  if (take('u')) return unicode_escape() || stop_at(begin, "an escape that is not a character");
  if (std::string_view("\"\\/bfnrt").find(peek()) == std::string_view::npos)
    return stop_at(begin, "an unknown escape");
  ++at_;
  return true;
}

// Checks the rest of an escape after \u: one code unit, or a surrogate pair.
bool Checker::unicode_escape() {
  unsigned unit = 0;
  if (!code_unit(unit) || (unit >= 0xDC00 && unit <= 0xDFFF)) return false;
  if (unit < 0xD800 || unit > 0xDBFF) return true;
  return take('\\') && take('u') && code_unit(unit) && unit >= 0xDC00 && unit <= 0xDFFF;
}

bool Checker::code_unit(unsigned& unit) {
  unit = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = peek();
    if (!is_hex(c)) return false;
    unit = unit * 16 + static_cast<unsigned>(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    ++at_;
  }
  return true;
}

bool Checker::number() {
  const std::size_t begin = at_;
  take('-');
  if (!take('0') && !digits()) return false;
  if (take('.') && !digits()) return false;
  if (take('e') || take('E')) {
    if (!take('+')) take('-');
    if (!digits()) return false;
  }
  if (at_ - begin > kMaxNumberBytes)
    return stop_at(begin, fmt::format("a number of more than {} digits", kMaxNumberBytes));
  if (numbers_ == Numbers::Doubles && is_beyond_double(text_.substr(begin, at_ - begin)))
    return stop_at(begin, "a number out of range");
  return true;
}

bool Checker::digits() {
  if (!is_digit(peek())) return unexpected("a digit");
  while (is_digit(peek())) ++at_;
  return true;
}

bool Checker::literal(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) return unexpected("a value");
  at_ += word.size();
  return true;
}

}  // namespace

std::optional<JsonError> find_json_error(std::string_view text, unsigned max_depth, Numbers numbers) {
  return Checker(text, max_depth, numbers).check();
}

}  // namespace stfs
