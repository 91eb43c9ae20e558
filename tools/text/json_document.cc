// Begins, reads and prints JSON documents, and makes paths absolute.
#include "tools/text/json_document.h"

#include "core/base/absolute_path.h"
#include "core/base/printable.h"
#include "core/format/json_syntax.h"

namespace stfs::tools {

Json json_document() {
  Json document;
  document["schema"] = kJsonSchema;
  return document;
}

Json json_of(const Tensor& tensor) {
  Json value = {{"name", tensor.name},
                {"dtype", name_of(tensor.dtype)},
                {"shape", nullptr},
                {"size_bytes", tensor.data.size_bytes}};
  if (tensor.shape.size() <= kMostJsonDimensions) value["shape"] = tensor.shape;
  return value;
}

Json parse_json(std::string_view text) {
  if (find_json_error(text, kMostJsonLevels)) return Json::value_t::discarded;
  return Json::parse(text, nullptr, false);
}

void write_json(const Json& document, std::ostream& out) {
  out << printable_json(document.dump(2, ' ', false, Json::error_handler_t::replace)) << '\n';
}

std::string json_line(const Json& value) {
  return printable_json(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string json_path(const std::filesystem::path& path) {
  const auto absolute = absolute_path(path);
  return absolute ? absolute->string() : path.string();
}

JsonStream::JsonStream(std::ostream& out) : out_(out) {
  out_ << "{\n  \"schema\": " << kJsonSchema;
}

void JsonStream::begin(std::string_view name) {
  out_ << ",\n  " << json_line(name) << ": ";
}

void JsonStream::member(std::string_view name, const Json& value) {
  begin(name);
  out_ << json_line(value);
}

void JsonStream::end() {
  out_ << "\n}\n";
}

}  // namespace stfs::tools
