// Checks the grammar of a header: a state machine over the tokens of its JSON (header_handler.cc).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "core/format/header_cursor.h"
#include "core/format/header_parser.h"

namespace stfs {

/// nlohmann_json calls these functions for each token. They are not templates: sax_parse is one, and a
/// million tensors make twenty million calls.
class HeaderHandler {
 public:
  HeaderHandler(std::string_view json, HeaderProgress& progress) : json_(json), progress_(progress) {}

  // One function per token, as nlohmann_json demands. Returning false stops the parser.
  bool null() { return value_of_kind("null", expected_ == Expected::Metadata); }
  bool boolean(bool) { return value_of_kind("a boolean"); }
  bool number_integer(std::int64_t) { return value_of_kind("a number with a minus sign"); }
  bool number_float(double, const std::string&) {
    return value_of_kind("a number that is no 64-bit integer");
  }
  bool binary(nlohmann::json::binary_t&) { return value_of_kind("binary data"); }
  bool number_unsigned(std::uint64_t value);
  bool string(std::string& value);
  bool start_object(std::size_t);
  bool key(std::string& name);
  bool end_object();
  bool start_array(std::size_t);
  bool end_array();
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) { return false; }

  /// Takes the parsed header after the last token.
  [[nodiscard]] ParsedHeader take() { return std::move(parsed_); }
  /// Why a token was refused; empty if the JSON itself was refused.
  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  // The role of the next value.
  enum class Expected : std::uint8_t {
    Root,
    Tensor,
    Metadata,
    MetadataValue,
    Dtype,
    Shape,
    Dimension,
    Offsets,
    Offset,
    Ignored
  };
  // The kind of object that the next key belongs to.
  enum class Place : std::uint8_t { Root, Tensor, Metadata };
  enum Field : unsigned { kDtype = 1, kShape = 2, kOffsets = 4 };

  // Accepts a value if it is ignored, or if `fits` is true.
  bool value_of_kind(std::string_view kind, bool fits = false) {
    progress_.token_read();
    return ignored_depth_ != 0 || expected_ == Expected::Ignored || fits || mismatch(kind);
  }
  bool enter();
  bool leave();
  bool tensor_field(const std::string& name);
  bool field_once(Field field, std::string_view name, Expected value);
  bool mismatch(std::string_view found);
  [[nodiscard]] std::string subject() const;
  [[nodiscard]] std::string_view due() const;
  bool refuse(std::string why) {
    why_ = std::move(why);
    return false;
  }
  [[nodiscard]] std::uint32_t position() const {
    return static_cast<std::uint32_t>(progress_.at - json_.data());
  }

  std::string_view json_;
  HeaderProgress& progress_;
  ParsedHeader parsed_;
  std::string metadata_key_;  // key of the pair being read
  std::string why_;
  Expected expected_ = Expected::Root;
  Place place_ = Place::Root;
  unsigned depth_ = 0;
  unsigned ignored_depth_ = 0;  // open objects and arrays inside an ignored field
  unsigned fields_ = 0;         // this tensor's fields seen so far
  unsigned offset_count_ = 0;
  std::array<std::uint64_t, 2> offsets_{};
  bool metadata_seen_ = false;
};

}  // namespace stfs
