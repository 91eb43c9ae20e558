// The JSON that verbs print with --json. Each output is an object that begins with "schema"; in a stream,
// each line is one.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>

namespace stfs::tools {

using Json = nlohmann::ordered_json;

/// The value of "schema". It grows when a member is removed or changes its meaning, not when a member is
/// added.
inline constexpr int kJsonSchema = 1;

/// Returns {"schema": 1}; the caller adds further members.
Json json_document();
/// Prints the document over several lines.
void write_json(const Json& document, std::ostream& out);
/// Returns the JSON text on one line. Bytes that are not valid UTF-8, which a path may have, become U+FFFD.
std::string json_line(const Json& value);
/// Returns the path as JSON shows it: absolute. Links and ".." stay as the user named them.
std::string json_path(const std::filesystem::path& path);

}  // namespace stfs::tools
