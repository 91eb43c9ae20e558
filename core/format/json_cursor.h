// Reads a text that is known to be JSON (find_json_error() has accepted it) without a tree in memory: callers
// take members in the order of the text, and skip the others. If the text is not JSON, the values are
// unspecified, but no byte outside the text is read, and every walk ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"

namespace stfs {

/// Refers to the text, which must outlive it.
class JsonCursor {
 public:
  /// Starts at the first value.
  explicit JsonCursor(std::string_view json) : text_(json) { skip_space(); }

  /// The current position, in bytes.
  [[nodiscard]] std::size_t position() const { return at_; }
  /// The first byte of the current value: '{', '[', '"', a digit or '-', 't', 'f', 'n'.
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  /// The current value must be an object. Calls `Result<void> callback(key, position of the key)` for each
  /// member, with the cursor at the member's value. The callback takes or skips the value. The key is valid
  /// until the callback returns.
  template <class Callback>
  Result<void> for_each_member(Callback&& callback) {
    skip_byte();
    skip_space();
    while (is_before('}')) {
      const std::size_t key_at = at_;
      std::string decoded;
      const std::string_view key = take_string(decoded);
      skip_space();
      skip_byte();  // the colon
      skip_space();
      RETURN_IF_ERROR(callback(key, key_at));
      next();
    }
    skip_byte();
    return {};
  }

  /// The current value must be an array. Calls `Result<void> callback()` for each element, with the cursor at
  /// it.
  template <class Callback>
  Result<void> for_each_element(Callback&& callback) {
    skip_byte();
    skip_space();
    while (is_before(']')) {
      RETURN_IF_ERROR(callback());
      next();
    }
    skip_byte();
    return {};
  }

  /// The current value must be a string. Returns a part of the text, or of `decoded` if the string has
  /// escapes.
  std::string_view take_string(std::string& decoded);
  /// Takes any value and returns its text.
  std::string_view take_value();
  /// Takes any value. Returns nothing unless it is written as a whole number from 0 to 2^64 - 1.
  std::optional<std::uint64_t> take_whole_number();

 private:
  void next() {
    skip_space();
    if (peek() == ',') ++at_;
    skip_space();
  }
  [[nodiscard]] bool is_at_end() const { return at_ == text_.size(); }
  [[nodiscard]] bool is_before(char end) const { return !is_at_end() && text_[at_] != end; }
  void skip_byte() { at_ += is_at_end() ? 0 : 1; }
  void skip_string();
  void skip_space() {
    while (at_ < text_.size() && static_cast<unsigned char>(text_[at_]) <= ' ') ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace stfs
