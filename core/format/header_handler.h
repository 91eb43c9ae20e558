// The grammar of a header, as a state machine over the tokens of its JSON (header_handler.cc).
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

/// What nlohmann_json calls for each token. Ordinary functions: sax_parse is a template, and a million
/// tensors are twenty million calls.
class HeaderHandler {
 public:
  HeaderHandler(std::string_view json, HeaderProgress& progress) : json_(json), progress_(progress) {}

  // One call per token, in the form that nlohmann_json asks for; false stops it.
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

  /// What has been read, once all of it has.
  [[nodiscard]] ParsedHeader take() { return std::move(parsed_); }
  /// Why a token was refused; empty where the JSON itself was.
  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  // What the next value is for.
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
  // The object that the next key belongs to.
  enum class Place : std::uint8_t { Root, Tensor, Metadata };
  enum Field : unsigned { kDtype = 1, kShape = 2, kOffsets = 4 };

  // A value that is fine where it is ignored, or where `fits` says so.
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
  std::string metadata_key_;  // of the pair being read
  std::string why_;
  Expected expected_ = Expected::Root;
  Place place_ = Place::Root;
  unsigned depth_ = 0;
  unsigned ignored_depth_ = 0;  // open objects and arrays inside a field that nobody asked for
  unsigned fields_ = 0;         // of this tensor, seen so far
  unsigned offset_count_ = 0;
  std::array<std::uint64_t, 2> offsets_{};
  bool metadata_seen_ = false;
};

}  // namespace stfs
