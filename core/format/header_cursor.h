// The bytes of a header on their way to the lexer of nlohmann_json, which knows more than it tells: where
// a key stands, and how much it has taken for one token.
#pragma once

#include <cstddef>
#include <iterator>

namespace stfs {

/// Shared by the lexer's iterator, which moves `at`, and the handler of the tokens.
struct HeaderProgress {
  const char* at = nullptr;
  const char* end = nullptr;
  std::size_t token_limit_bytes = 0;  // white space before the token included
  const char* stop = nullptr;         // where the input seems to end, unless a token is read before
  bool starved = false;               // the lexer has come to a stop before the end

  /// To be called for every token.
  void token_read() {
    stop = static_cast<std::size_t>(end - at) > token_limit_bytes ? at + token_limit_bytes : end;
  }
  bool stopped() {
    if (at != stop) return false;
    starved = starved || stop != end;
    return true;
  }
};

/// Walks over the header for the lexer, which compares it with the end only.
class HeaderCursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  explicit HeaderCursor(HeaderProgress& progress) : progress_(&progress) {}
  reference operator*() const { return *progress_->at; }
  HeaderCursor& operator++() {
    ++progress_->at;
    return *this;
  }
  friend bool operator==(const HeaderCursor& a, const HeaderCursor&) { return a.progress_->stopped(); }

 private:
  HeaderProgress* progress_;
};

}  // namespace stfs
