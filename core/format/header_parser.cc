// The grammar of a header: reads each value, and stores it in the index or the metadata.
//
// Types and fields are checked as strictly as the reference's serde does. For example, -0 is no whole number.
#include "core/format/header_parser.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "core/base/utf8.h"
#include "core/format/dtype.h"
#include "core/format/json_cursor.h"
#include "core/format/json_string.h"
#include "core/format/json_syntax.h"

namespace stfs {
namespace {

constexpr std::string_view kDimensions = "an array of whole numbers from 0 to 2^64-1";
constexpr std::string_view kTwoOffsets = "two whole numbers from 0 to 2^64-1";

tl::unexpected<Error> refuse(std::string why) {
  return fail(ErrorCode::InvalidHeaderDeserialization, EINVAL, std::move(why));
}

/// Reads a text that is known to be JSON.
class HeaderReader {
 public:
  explicit HeaderReader(std::string_view json) : json_(json) {}

  Result<ParsedHeader> read() {
    // The file is no archive, and may be private: the message shows none of its bytes.
    if (json_.peek() != '{') return refuse("the header: expected an object of tensors");
    bool has_metadata = false;
    auto read = json_.for_each_member([&](std::string_view name, std::size_t name_at) -> Result<void> {
      if (name == "__metadata__") {
        if (std::exchange(has_metadata, true))
          return refuse(fmt::format("byte {}: __metadata__ is given twice", name_at));
        return read_metadata();
      }
      parsed_.tensors.begin_tensor(name, static_cast<std::uint32_t>(name_at));
      return read_tensor();
    });
    RETURN_IF_ERROR(read);
    return std::move(parsed_);
  }

 private:
  enum Field : unsigned { kIgnored = 0, kDtype = 1, kShape = 2, kOffsets = 4 };

  Result<void> read_metadata() {
    if (json_.peek() == 'n') {
      json_.take_value();
      return {};
    }
    if (json_.peek() != '{') return mismatch("__metadata__", "an object of strings");
    return json_.for_each_member([&](std::string_view key, std::size_t) -> Result<void> {
      if (json_.peek() != '"') return mismatch("__metadata__ " + in_quotes(key), "a string");
      std::string decoded;
      parsed_.metadata.emplace_back(key, json_.take_string(decoded));
      return {};
    });
  }

  /// Reads the entry of the tensor that was begun last.
  Result<void> read_tensor() {
    if (json_.peek() != '{') return mismatch(subject(), "an object with dtype, shape and data_offsets");
    unsigned fields = 0;
    auto read = json_.for_each_member([&](std::string_view key, std::size_t key_at) -> Result<void> {
      const Field field = field_named(key);
      if ((fields & field) != 0)
        return refuse(fmt::format("{}: byte {}: {} is given twice", subject(), key_at, key));
      fields |= field;
      switch (field) {
        case kDtype: return read_dtype();
        case kShape: return read_shape();
        case kOffsets: return read_offsets();
        case kIgnored: break;
      }
      json_.take_value();
      return {};
    });
    RETURN_IF_ERROR(read);
    const std::string_view missing = (fields & kDtype) == 0     ? "dtype"
                                     : (fields & kShape) == 0   ? "shape"
                                     : (fields & kOffsets) == 0 ? "data_offsets"
                                                                : "";
    if (missing.empty()) return {};
    return refuse(fmt::format("{}: byte {}: {} is missing", subject(), json_.position() - 1, missing));
  }

  static Field field_named(std::string_view key) {
    return key == "dtype" ? kDtype : key == "shape" ? kShape : key == "data_offsets" ? kOffsets : kIgnored;
  }

  Result<void> read_dtype() {
    const JsonCursor before = json_;
    std::string decoded;
    const auto dtype = json_.peek() == '"' ? dtype_named(json_.take_string(decoded)) : std::optional<Dtype>();
    if (dtype) {
      parsed_.tensors.set_dtype(*dtype);
      return {};
    }
    json_ = before;
    return mismatch(subject("dtype"), "the name of a dtype");
  }

  Result<void> read_shape() {
    if (json_.peek() != '[') return mismatch(subject("shape"), kDimensions);
    parsed_.tensors.begin_shape();
    return json_.for_each_element([&]() -> Result<void> {
      const JsonCursor before = json_;
      if (const auto dimension = json_.take_whole_number()) {
        parsed_.tensors.add_dimension(*dimension);
        return {};
      }
      json_ = before;
      return mismatch(subject("shape"), kDimensions);
    });
  }

  Result<void> read_offsets() {
    if (json_.peek() != '[') return mismatch(subject("data_offsets"), kTwoOffsets);
    const std::size_t at = json_.position();
    std::array<std::uint64_t, 2> offsets{};
    std::size_t count = 0;
    auto read = json_.for_each_element([&]() -> Result<void> {
      const JsonCursor before = json_;
      const auto offset = json_.take_whole_number();
      if (offset && count < offsets.size()) {
        offsets[count++] = *offset;
        return {};
      }
      json_ = before;
      return mismatch(subject("data_offsets"), kTwoOffsets, offset ? "a third number" : "");
    });
    RETURN_IF_ERROR(read);
    if (count != offsets.size()) {
      return refuse(fmt::format("{}: found {} at byte {}, expected {}", subject("data_offsets"),
                                count == 0 ? "none" : "only one", at, kTwoOffsets));
    }
    parsed_.tensors.set_data_offsets(offsets[0], offsets[1]);
    return {};
  }

  [[nodiscard]] std::string subject(std::string_view field = "") const {
    const std::string tensor = "tensor " + in_quotes(parsed_.tensors.name());
    return field.empty() ? tensor : fmt::format("{}: {}", tensor, field);
  }

  /// Refuses the value at the cursor.
  tl::unexpected<Error> mismatch(std::string_view subject, std::string_view expected,
                                 std::string_view found = "") {
    const std::size_t at = json_.position();
    return refuse(fmt::format("{}: found {} at byte {}, expected {}", subject, found.empty() ? kind() : found,
                              at, expected));
  }
  /// Describes the value at the cursor for a message.
  std::string kind() {
    switch (json_.peek()) {
      case '{': return "an object";
      case '[': return "an array";
      case 'n': return "null";
      case 't':
      case 'f': return "a boolean";
      case '-': return "a number with a minus sign";
      case '"': {
        std::string decoded;
        return in_quotes(json_.take_string(decoded));
      }
      default: return json_.take_whole_number() ? "a number" : "a number that is not a 64-bit integer";
    }
  }

  JsonCursor json_;
  ParsedHeader parsed_;
};

}  // namespace

Result<ParsedHeader> parse_header_json(std::string_view json) {
  // The reference looks at the encoding of the whole header first.
  if (const std::size_t valid = valid_utf8_prefix(json); valid != json.size()) {
    return fail(ErrorCode::InvalidHeader, EINVAL, fmt::format("byte {}: not UTF-8", valid));
  }
  // The reference refuses numbers that no double can hold, even in ignored fields.
  if (const auto error = find_json_error(json, kMaxHeaderDepth, Numbers::Doubles))
    return refuse(fmt::format("byte {}: not JSON: {}", error->position, error->why));
  return HeaderReader(json).read();
}

}  // namespace stfs
