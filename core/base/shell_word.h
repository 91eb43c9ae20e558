// Writes a path into a command that a message advises: the user pastes it into a shell.
#pragma once

#include <string>
#include <string_view>

namespace stfs {

/// Returns the text as one word of a shell. The word starts no command and is no option. Text of letters,
/// digits and the marks of common paths stays as it is. Other text gets quotes: `'it'\''s'`. If printable()
/// would escape a character, the word is `$'...'`, which bash and zsh read: a stranger's file name sends no
/// control sequence to the terminal.
std::string shell_word(std::string_view text);

}  // namespace stfs
