// The JSON that verbs print with --json: each output, or each line of a stream of them, is an object that
// begins with "schema".
#pragma once

#include <filesystem>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <string>

namespace stfs::tools {

using Json = nlohmann::ordered_json;

/// The value of "schema". It grows when a member goes or changes its meaning; new members come without.
inline constexpr int kJsonSchema = 1;

/// {"schema": 1}, for further members.
Json json_document();
/// Prints the document over several lines.
void write_json(const Json& document, std::ostream& out);
/// The text on one line. Bytes that are no UTF-8, which a path may have, become U+FFFD.
std::string json_line(const Json& value);
/// The one form of a path in JSON: absolute. Links and ".." stay as they were named.
std::string json_path(const std::filesystem::path& path);

}  // namespace stfs::tools
