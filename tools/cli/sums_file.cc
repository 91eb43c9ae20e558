// Writes and reads records. The reader trusts nothing: json_syntax first checks that the text is JSON, as for
// an index.
#include "tools/cli/sums_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "core/base/utf8.h"
#include "core/format/json_cursor.h"
#include "core/format/json_string.h"
#include "core/format/json_syntax.h"
#include "core/format/tensor_index.h"
#include "core/storage/file.h"
#include "tools/text/json_document.h"

namespace stfs::tools {
namespace {

constexpr std::uint64_t kVersion = 1;
constexpr unsigned kMaxDepth = 16;
constexpr std::string_view kAlgorithm = "xxh128:";
constexpr std::size_t kDigits = 32;

tl::unexpected<Error> refuse(std::size_t at, std::string_view why) {
  return fail(ErrorCode::InvalidArgument, EINVAL, fmt::format("byte {}: {}", at, why));
}

bool is_checksum(std::string_view text) {
  return text.starts_with(kAlgorithm) && text.size() == kAlgorithm.size() + kDigits &&
         text.find_first_not_of("0123456789abcdef", kAlgorithm.size()) == text.npos;
}

/// Reads text that is already known to be JSON.
class SumsReader {
 public:
  explicit SumsReader(std::string_view json) : json_(json) {}

  Result<Sums> read() {
    if (json_.peek() != '{') return refuse(json_.position(), "it is not a JSON object");
    bool has_version = false;
    bool has_tensors = false;
    auto read = json_.for_each_member([&](std::string_view key, std::size_t key_at) -> Result<void> {
      if (key == "version") {
        if (std::exchange(has_version, true)) return refuse(key_at, "version is given twice");
        const std::size_t at = json_.position();
        if (json_.take_whole_number() == kVersion) return {};
        return refuse(at, fmt::format("another version than {}", kVersion));
      }
      if (key == "tensors") {
        if (std::exchange(has_tensors, true)) return refuse(key_at, "tensors is given twice");
        return read_tensors();
      }
      json_.take_value();
      return {};
    });
    RETURN_IF_ERROR(read);
    if (!has_version || !has_tensors) return refuse(0, "it has no version and tensors");
    std::ranges::sort(sums_, {}, &RecordedTensor::name);
    const auto twin = std::ranges::adjacent_find(sums_, {}, &RecordedTensor::name);
    if (twin != sums_.end()) return refuse(0, fmt::format("tensor {} is given twice", in_quotes(twin->name)));
    return std::move(sums_);
  }

 private:
  Result<void> read_tensors() {
    if (json_.peek() != '{') return refuse(json_.position(), "tensors is not an object");
    return json_.for_each_member([&](std::string_view name, std::size_t key_at) -> Result<void> {
      RecordedTensor tensor;
      tensor.name = name;
      RETURN_IF_ERROR(read_tensor(tensor, key_at));
      sums_.push_back(std::move(tensor));
      return {};
    });
  }

  Result<void> read_tensor(RecordedTensor& tensor, std::size_t key_at) {
    const auto wrong = [&](std::size_t at, std::string_view why) {
      return refuse(at, fmt::format("tensor {}: {}", in_quotes(tensor.name), why));
    };
    if (json_.peek() != '{') return wrong(json_.position(), "is not an object");
    std::optional<Dtype> dtype;
    bool has_shape = false;
    auto read = json_.for_each_member([&](std::string_view key, std::size_t) -> Result<void> {
      const std::size_t at = json_.position();
      if (key == "dtype") {
        std::string decoded;
        if (json_.peek() == '"') dtype = dtype_named(json_.take_string(decoded));
        if (!dtype) return wrong(at, "dtype is not a dtype of the format");
        return {};
      }
      if (key == "shape") {
        has_shape = true;
        tensor.shape.clear();
        if (json_.peek() != '[') return wrong(at, "shape is not an array");
        return json_.for_each_element([&]() -> Result<void> {
          const std::size_t dimension_at = json_.position();
          const auto dimension = json_.take_whole_number();
          if (!dimension) return wrong(dimension_at, "a dimension is not a whole number");
          if (tensor.shape.size() == kMostJsonDimensions)
            return wrong(dimension_at, "has too many dimensions");
          tensor.shape.push_back(*dimension);
          return {};
        });
      }
      if (key == "checksum") {
        std::string decoded;
        if (json_.peek() == '"') tensor.checksum = json_.take_string(decoded);
        if (!is_checksum(tensor.checksum))
          return wrong(at, "checksum is not xxh128: and 32 lower-case digits");
        return {};
      }
      json_.take_value();
      return {};
    });
    RETURN_IF_ERROR(read);
    if (!dtype || !has_shape || tensor.checksum.empty()) {
      return wrong(key_at, "expected dtype, shape and checksum");
    }
    tensor.dtype = *dtype;
    return {};
  }

  JsonCursor json_;
  Sums sums_;
};

Result<Sums> parse_sums(std::string_view json) {
  if (const std::size_t valid = valid_utf8_prefix(json); valid != json.size()) {
    return refuse(valid, "not UTF-8");
  }
  if (const auto error = find_json_error(json, kMaxDepth)) {
    return refuse(error->position, fmt::format("not JSON: {}", error->why));
  }
  return SumsReader(json).read();
}

/// Reads the whole content of a regular file that is not too large.
Result<std::string> read_text(const std::string& path) {
  auto file = system_storage().open(path, Access::ReadOnly);
  RETURN_IF_ERROR(file);
  const auto size_bytes = (*file)->size_bytes();
  RETURN_IF_ERROR(size_bytes);
  if (*size_bytes > kMaxSumsBytes) {
    return fail(ErrorCode::InvalidArgument, EFBIG,
                fmt::format("{}: {} bytes, a record has at most {}", path, *size_bytes, kMaxSumsBytes));
  }
  return stfs::read_text(**file, {0, *size_bytes});
}

}  // namespace

Result<void> append_sums(NewFile& file, std::string_view source, const Sums& sums) {
  std::string text = fmt::format("{{\n  \"version\": {},\n  \"source\": ", kVersion);
  const auto flush = [&] {
    auto appended = file.append(std::as_bytes(std::span(text)));
    text.clear();
    return appended;
  };
  append_json_string(text, is_utf8(source) ? source : "");
  text += ",\n  \"tensors\": {";
  for (const RecordedTensor& tensor : sums) {
    text += &tensor == sums.data() ? "\n    " : ",\n    ";
    append_json_string(text, tensor.name);
    text += fmt::format(R"(: {{"dtype": "{}", "shape": {}, "checksum": "{}"}})", name_of(tensor.dtype),
                        shape_text(tensor.shape), tensor.checksum);
    RETURN_IF_ERROR(flush());
  }
  text += sums.empty() ? "}\n}\n" : "\n  }\n}\n";
  return flush();
}

Result<Sums> read_sums(const std::string& path) {
  return guard_memory([&]() -> Result<Sums> {
    auto text = read_text(path);
    RETURN_IF_ERROR(text);
    auto sums = parse_sums(*text);
    if (!sums) return tl::unexpected(std::move(sums).error().within(path + ": not a record of stfs verify"));
    return sums;
  });
}

}  // namespace stfs::tools
