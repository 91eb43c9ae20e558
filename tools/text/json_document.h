// The JSON that verbs print with --json, and that servers send. Each output of a verb is an object that
// begins with "schema"; in a stream, each line is one.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace stfs::tools {

using Json = nlohmann::ordered_json;

/// The value of "schema". It grows when a member is removed or changes its meaning, not when a member is
/// added.
inline constexpr int kJsonSchema = 1;

/// Returns {"schema": 1}; the caller adds further members.
Json json_document();
/// Arrays and objects that may be open at a time in a text for parse_json().
inline constexpr unsigned kMostJsonLevels = 16;
/// Reads a JSON text that another program has sent. The result is_discarded() if the text is not JSON or is
/// nested more deeply: nlohmann_json copies a tree by recursion, and a deep one overflows the stack.
Json parse_json(std::string_view text);
/// Prints the document over several lines.
void write_json(const Json& document, std::ostream& out);
/// Returns the JSON text on one line. Bytes that are not valid UTF-8, which a path may have, become U+FFFD.
std::string json_line(const Json& value);
/// Returns the path as JSON shows it: absolute. Links and ".." stay as the user named them.
std::string json_path(const std::filesystem::path& path);

}  // namespace stfs::tools
