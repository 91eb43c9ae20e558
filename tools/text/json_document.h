// The JSON that verbs print with --json, and that servers send. Each output of a verb is an object that
// begins with "schema"; in a stream, each line is such an object. In strings, the characters that
// core/base/printable.h escapes are written as `\uHHHH`: the text stays exact, and a terminal does not act on
// it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>

#include "core/format/tensor_index.h"

namespace stfs::tools {

using Json = nlohmann::ordered_json;

/// The value of "schema". It grows when a member is removed or changes its meaning, not when a member is
/// added.
inline constexpr int kJsonSchema = 1;

/// Returns {"schema": 1}; the caller adds further members.
Json json_document();
/// A shape with more dimensions is null: a list of millions of numbers takes gigabytes.
inline constexpr std::size_t kMostJsonDimensions = 1 << 16;
/// Returns the name, dtype, shape and size_bytes of a tensor.
Json json_of(const Tensor& tensor);
/// The number of arrays and objects that may be open at a time in a text for parse_json().
inline constexpr unsigned kMostJsonLevels = 16;
/// Reads a JSON text that another program has sent. The result is_discarded() if the text is not JSON or is
/// nested too deeply: nlohmann_json copies a tree by recursion, and a deep tree overflows the stack.
Json parse_json(std::string_view text);
/// Prints the document over several lines.
void write_json(const Json& document, std::ostream& out);
/// Returns the JSON text on one line. Bytes that are not valid UTF-8, which a path may have, become U+FFFD.
std::string json_line(const Json& value);
/// Returns the path in the form that JSON shows: absolute. Links and ".." stay as the user named them.
std::string json_path(const std::filesystem::path& path);

/// Writes an object that begins with "schema", member by member. A long array is never in memory as a whole.
class JsonStream {
 public:
  explicit JsonStream(std::ostream& out);

  void member(std::string_view name, const Json& value);
  /// Writes a member that is an array: `json_of_item(item)` for each item, one on each line. Stops when the
  /// stream fails.
  template <class Items, class JsonOfItem>
  void array(std::string_view name, const Items& items, JsonOfItem&& json_of_item) {
    begin(name);
    out_ << '[';
    const char* separator = "\n    ";
    const char* end = "]";
    for (const auto& item : items) {
      if (!out_) return;
      out_ << separator << json_line(json_of_item(item));
      separator = ",\n    ";
      end = "\n  ]";
    }
    out_ << end;
  }
  /// Ends the object.
  void end();

 private:
  void begin(std::string_view name);

  std::ostream& out_;
};

}  // namespace stfs::tools
