// Sentences about remote files that a person should read: what is shown without its server.
#pragma once

#include <string>
#include <vector>

namespace stfs {

/// Keeps a sentence. Any thread may call.
void add_remote_note(std::string note);
/// Returns the sentences since the last call. Mounts log them, and verbs print them.
std::vector<std::string> take_remote_notes();

}  // namespace stfs
