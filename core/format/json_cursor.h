// A walk over a text that is known to be JSON (find_json_error() has let it through), without a tree in
// memory: members are taken as they come, and what nobody asked for is skipped.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"

namespace stfs {

/// Refers to the text.
class JsonCursor {
 public:
  /// Stands at the first value.
  explicit JsonCursor(std::string_view json) : text_(json) { skip_space(); }

  /// Where it stands, in bytes.
  [[nodiscard]] std::size_t position() const { return at_; }
  /// First byte of the value at which it stands: '{', '[', '"', a digit or '-', 't', 'f', 'n'.
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  /// Standing at an object: calls `Result<void> callback(key, position of the key)` for each member, standing
  /// at its value, which the callback takes or skips. The key is valid until the callback returns.
  template <class Callback>
  Result<void> for_each_member(Callback&& callback) {
    ++at_;
    skip_space();
    while (peek() != '}') {
      const std::size_t key_at = at_;
      std::string decoded;
      const std::string_view key = take_string(decoded);
      skip_space();
      ++at_;  // the colon
      skip_space();
      if (auto taken = callback(key, key_at); !taken) return taken;
      next();
    }
    ++at_;
    return {};
  }

  /// Standing at an array: calls `Result<void> callback()` for each element, standing at it.
  template <class Callback>
  Result<void> for_each_element(Callback&& callback) {
    ++at_;
    skip_space();
    while (peek() != ']') {
      if (auto taken = callback(); !taken) return taken;
      next();
    }
    ++at_;
    return {};
  }

  /// Standing at a string: a part of the text, or of `decoded` where it has escapes.
  std::string_view take_string(std::string& decoded);
  /// Any value as it is written.
  std::string_view take_value();
  /// Any value: nothing where it is not a whole number from 0 to 2^64 - 1, written as one.
  std::optional<std::uint64_t> take_whole_number();

 private:
  void next() {
    skip_space();
    if (peek() == ',') ++at_;
    skip_space();
  }
  void skip_string();
  void skip_space() {
    while (at_ < text_.size() && static_cast<unsigned char>(text_[at_]) <= ' ') ++at_;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace stfs
