// Feeds a header's bytes to the lexer of nlohmann_json and observes it. The lexer does not report where a key
// stands and how much it has read for one token; the position of this cursor does.
#pragma once

#include <cstddef>
#include <iterator>

namespace stfs {

/// Shared by the lexer's iterator, which moves `at`, and the token handler.
struct HeaderProgress {
  const char* at = nullptr;
  const char* end = nullptr;
  std::size_t token_limit_bytes = 0;  // including white space before the token
  const char* stop = nullptr;         // the input seems to end here, unless a token is read before
  bool starved = false;               // the lexer has reached `stop` before the real end

  /// Call this for every token.
  void token_read() {
    stop = static_cast<std::size_t>(end - at) > token_limit_bytes ? at + token_limit_bytes : end;
  }
  bool stopped() {
    if (at != stop) return false;
    starved = starved || stop != end;
    return true;
  }
};

/// Iterates over the header for the lexer. The lexer compares it only with the end.
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
