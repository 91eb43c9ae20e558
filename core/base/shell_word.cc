#include "core/base/shell_word.h"

#include <algorithm>

#include "core/base/printable.h"

namespace stfs {
namespace {

/// Characters that a shell takes as they are, anywhere in a word.
bool is_common(char c) {
  constexpr std::string_view kMarks = "/._-+,:@%";
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         kMarks.find(c) != kMarks.npos;
}

}  // namespace

std::string shell_word(std::string_view text) {
  std::string word = text.starts_with('-') ? "./" : "";
  if (!text.empty() && std::ranges::all_of(text, is_common)) return word += text;
  std::string shown;
  append_printable(shown, text, EscapeForm::Short, "\\'");
  if (printable(text) != text) return word + "$'" + shown + "'";
  word += '\'';
  for (const char c : text) {
    if (c == '\'') {
      word += "'\\''";
    } else {
      word += c;
    }
  }
  return word += '\'';
}

}  // namespace stfs
