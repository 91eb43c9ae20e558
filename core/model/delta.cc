#include "core/model/delta.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/name_hash.h"
#include "core/format/header.h"
#include "core/format/json_cursor.h"
#include "core/format/json_string.h"
#include "core/format/json_syntax.h"

namespace stfs {
namespace {

constexpr std::string_view kFirstVersion = "1";
constexpr std::string_view kDiffVersion = "2";
constexpr std::string_view kEditVersion = "3";
constexpr std::string_view kBase = "safetensorsfs.delta.base";
constexpr std::string_view kBaseTensors = "safetensorsfs.delta.base_tensors";
constexpr std::string_view kBaseBytes = "safetensorsfs.delta.base_bytes";
constexpr std::string_view kAllBaseBytes = "safetensorsfs.delta.all_base_bytes";
constexpr std::string_view kBaseFiles = "safetensorsfs.delta.base_files";
constexpr std::string_view kRemoved = "safetensorsfs.delta.removed";
constexpr std::string_view kRenamed = "safetensorsfs.delta.renamed";

bool is_delta_key(std::string_view key) {
  return key.starts_with(kDeltaKey);
}

template <class... Parts>
tl::unexpected<Error> not_a_delta(fmt::format_string<Parts...> format, Parts&&... parts) {
  return fail(ErrorCode::InvalidArgument, EINVAL,
              "not usable as a delta: " + fmt::format(format, std::forward<Parts>(parts)...));
}

bool is_digest(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// Parses the JSON array of a key. `take(cursor)` takes an element.
template <class Item>
Result<std::vector<Item>> parse_array(std::string_view key, std::string_view json, unsigned max_depth,
                                      Result<Item> (*take)(JsonCursor& cursor)) {
  if (const auto wrong = find_json_error(json, max_depth)) {
    return not_a_delta("{}: byte {}: {}", key, wrong->position, wrong->why);
  }
  JsonCursor cursor(json);
  if (cursor.peek() != '[') return not_a_delta("{}: is not a JSON array", key);
  std::vector<Item> items;
  auto done = cursor.for_each_element([&]() -> Result<void> {
    auto item = take(cursor);
    RETURN_IF_ERROR(item);
    items.push_back(std::move(*item));
    return {};
  });
  RETURN_IF_ERROR(done);
  return items;
}

Result<std::string> take_name(JsonCursor& cursor) {
  if (cursor.peek() != '"') return not_a_delta("{}: has an element that is not a name", kRemoved);
  std::string decoded;
  return std::string(cursor.take_string(decoded));
}

/// Takes [name, size, mtime or version].
Result<BaseFile> take_base_file(JsonCursor& cursor) {
  BaseFile file;
  int at = 0;
  const auto wrong = [] {
    return not_a_delta("{}: has an element that is not [name, size, time]", kBaseFiles);
  };
  if (cursor.peek() != '[') return wrong();
  auto done = cursor.for_each_element([&]() -> Result<void> {
    if (at == 0) {
      if (cursor.peek() != '"') return wrong();
      std::string decoded;
      file.name = cursor.take_string(decoded);
    } else if (at == 2 && cursor.peek() == '"') {
      std::string decoded;
      file.version = cursor.take_string(decoded);
    } else {
      const auto number = cursor.take_whole_number();
      const bool is_time = at == 2;
      if (!number || at > 2 || (is_time && *number > std::numeric_limits<std::int64_t>::max()))
        return wrong();
      if (is_time) {
        file.mtime_ns = static_cast<std::int64_t>(*number);
      } else {
        file.size_bytes = *number;
      }
    }
    ++at;
    return {};
  });
  RETURN_IF_ERROR(done);
  if (at != 3) return wrong();
  return file;
}

/// Takes [name, name in the base, dtype, shape].
Result<Delta::Renamed> take_renamed(JsonCursor& cursor) {
  Delta::Renamed renamed;
  int at = 0;
  const auto wrong = [] {
    return not_a_delta("{}: has an element that is not [name, name in the base, dtype, shape]", kRenamed);
  };
  const auto take_dimension = [&]() -> Result<void> {
    const auto size = cursor.take_whole_number();
    if (!size) return wrong();
    renamed.shape.push_back(*size);
    return {};
  };
  if (cursor.peek() != '[') return wrong();
  auto done = cursor.for_each_element([&]() -> Result<void> {
    if (at == 3 && cursor.peek() == '[') {
      ++at;
      return cursor.for_each_element(take_dimension);
    }
    if (at > 2 || cursor.peek() != '"') return wrong();
    std::string decoded;
    const std::string text(cursor.take_string(decoded));
    if (at == 0) renamed.name = text;
    if (at == 1) renamed.from = text;
    if (at++ < 2) return {};
    const auto dtype = dtype_named(text);
    if (!dtype) return not_a_delta("{}: has an unknown dtype {}", kRenamed, in_quotes(text));
    renamed.dtype = *dtype;
    return {};
  });
  RETURN_IF_ERROR(done);
  if (at != 4) return wrong();
  return renamed;
}

std::string text_of(const std::vector<std::string>& names) {
  std::string text = "[";
  for (const std::string& name : names) {
    if (text.size() > 1) text += ',';
    append_json_string(text, name);
  }
  return text + "]";
}

std::string text_of(const std::vector<Delta::Renamed>& all) {
  std::string text = "[";
  for (const Delta::Renamed& renamed : all) {
    text += text.size() > 1 ? ",[" : "[";
    append_json_string(text, renamed.name);
    text += ',';
    append_json_string(text, renamed.from);
    text += fmt::format(",\"{}\",[{}]]", name_of(renamed.dtype), fmt::join(renamed.shape, ","));
  }
  return text + "]";
}

std::string text_of(const std::vector<BaseFile>& files) {
  std::string text = "[";
  for (const BaseFile& file : files) {
    if (text.size() > 1) text += ',';
    text += '[';
    append_json_string(text, file.name);
    text += fmt::format(",{},", file.size_bytes);
    if (file.version.empty()) {
      text += fmt::format("{}]", std::max<std::int64_t>(file.mtime_ns, 0));
    } else {
      append_json_string(text, file.version);
      text += ']';
    }
  }
  return text + "]";
}

/// Adds a number in a fixed size, so that no two lists of numbers and texts give the same bytes.
void update(Checksum& checksum, std::uint64_t number) {
  std::array<std::byte, 8> bytes{};
  for (std::size_t at = 0; at < bytes.size(); ++at) bytes[at] = static_cast<std::byte>(number >> (8 * at));
  checksum.update(bytes);
}

void update(Checksum& checksum, std::string_view text) {
  update(checksum, text.size());
  checksum.update(std::as_bytes(std::span(text)));
}

}  // namespace

bool is_delta(const Metadata& metadata) {
  return std::ranges::any_of(metadata, [](const auto& entry) { return is_delta_key(entry.first); });
}

Result<Delta> parse_delta(const Metadata& metadata) {
  Delta delta;
  std::map<std::string_view, std::string_view> keys;
  for (const auto& [key, value] : metadata) {
    if (is_delta_key(key)) {
      keys.emplace(key, value);
    } else {
      delta.metadata.emplace_back(key, value);
    }
  }
  delta.metadata.sort_keys();
  if (!keys.contains(kDeltaKey))
    return not_a_delta("its metadata has no key {}, which stfs diff --out writes", kDeltaKey);
  const std::string_view version = keys[kDeltaKey];
  if (version != kFirstVersion && version != kDiffVersion && version != kEditVersion) {
    return not_a_delta("it has version {}, this program knows versions 1 to {}", in_quotes(version),
                       kEditVersion);
  }
  const bool is_edited = version == kEditVersion;
  std::vector<std::string_view> due = {kBase, kBaseTensors, kRemoved, is_edited ? kRenamed : kBaseBytes};
  if (version != kFirstVersion) due.push_back(kBaseFiles);
  // Version 2 has renamed tensors also, if stfs diff has found some. Its base_bytes were read in the order of
  // the new names.
  const bool has_renamed = is_edited || (version == kDiffVersion && keys.contains(kRenamed));
  if (has_renamed && !is_edited) due.push_back(kRenamed);
  if (is_edited && keys.contains(kAllBaseBytes)) due.push_back(kAllBaseBytes);
  for (const std::string_view key : due) {
    if (!keys.contains(key)) return not_a_delta("its metadata has no key {}", key);
  }
  if (keys.size() != due.size() + 1)
    return not_a_delta("its metadata has keys that version {} does not know", version);
  for (const std::string_view key : {kBaseTensors, kBaseBytes, kAllBaseBytes}) {
    if (keys.contains(key) && !is_digest(keys[key]))
      return not_a_delta("{}: {} is no digest", key, in_quotes(keys[key]));
  }
  auto removed = parse_array(kRemoved, keys[kRemoved], 2, take_name);
  RETURN_IF_ERROR(removed);
  if (version != kFirstVersion) {
    auto files = parse_array(kBaseFiles, keys[kBaseFiles], 3, take_base_file);
    RETURN_IF_ERROR(files);
    delta.base_files = std::move(*files);
  }
  if (has_renamed) {
    auto renamed = parse_array(kRenamed, keys[kRenamed], 4, take_renamed);
    RETURN_IF_ERROR(renamed);
    delta.renamed = std::move(*renamed);
  }
  delta.base = keys[kBase];
  delta.base_tensors = keys[kBaseTensors];
  delta.base_bytes = keys[kBaseBytes];  // empty without the key
  delta.all_base_bytes = keys[kAllBaseBytes];
  delta.removed = std::move(*removed);
  return delta;
}

Metadata metadata_of(const Delta& delta) {
  const bool is_edited = delta.base_bytes.empty();
  Metadata metadata = delta.metadata;
  metadata.emplace_back(kDeltaKey, is_edited ? kEditVersion : kDiffVersion);
  metadata.emplace_back(kBase, delta.base);
  metadata.emplace_back(kBaseTensors, delta.base_tensors);
  if (!is_edited) metadata.emplace_back(kBaseBytes, delta.base_bytes);
  if (is_edited && !delta.all_base_bytes.empty()) metadata.emplace_back(kAllBaseBytes, delta.all_base_bytes);
  metadata.emplace_back(kBaseFiles, text_of(delta.base_files));
  metadata.emplace_back(kRemoved, text_of(delta.removed));
  if (is_edited || !delta.renamed.empty()) metadata.emplace_back(kRenamed, text_of(delta.renamed));
  return metadata;
}

std::vector<std::filesystem::path> split_deltas(std::string_view list) {
  std::vector<std::filesystem::path> deltas;
  std::string path;
  for (std::size_t at = 0; at < list.size(); ++at) {
    const bool is_escaped =
        list[at] == '\\' && at + 1 < list.size() && (list[at + 1] == ':' || list[at + 1] == '\\');
    if (is_escaped) {
      path += list[++at];
    } else if (list[at] == ':') {
      deltas.emplace_back(std::exchange(path, {}));
    } else {
      path += list[at];
    }
  }
  deltas.emplace_back(path);
  return deltas;
}

std::string join_deltas(const std::vector<std::filesystem::path>& deltas) {
  std::string list;
  for (std::size_t at = 0; at < deltas.size(); ++at) {
    if (at > 0) list += ':';
    for (const char character : deltas[at].native()) {
      if (character == ':' || character == '\\') list += '\\';
      list += character;
    }
  }
  return list;
}

std::string digest_of_tensors(const TensorIndex& tensors) {
  std::vector<std::uint32_t> positions(tensors.size());
  std::iota(positions.begin(), positions.end(), 0U);
  std::ranges::sort(positions, {}, [&](std::uint32_t position) { return tensors[position].name; });
  Checksum checksum;
  for (const std::uint32_t position : positions) {
    const Tensor tensor = tensors[position];
    update(checksum, tensor.name);
    update(checksum, name_of(tensor.dtype));
    update(checksum, tensor.shape.size());
    for (const std::uint64_t size : tensor.shape) update(checksum, size);
  }
  return checksum.hex();
}

Result<void> check_delta(const Delta& delta, const TensorIndex& changed, const TensorIndex& base) {
  if (delta.base_tensors != digest_of_tensors(base)) {
    return not_a_delta("it was made for another base, {}: names, dtypes or shapes of its tensors differ",
                       in_quotes(delta.base));
  }
  return check_names(delta, changed, base);
}

Result<void> check_names(const Delta& delta, const TensorIndex& changed, const TensorIndex& base) {
  NameSet<std::string_view> seen;
  for (const std::string& name : delta.removed) {
    if (!base.find(name)) return not_a_delta("it removes {}, which its base lacks", in_quotes(name));
    if (changed.find(name)) return not_a_delta("it removes {}, and has it too", in_quotes(name));
    if (!seen.insert(name).second) return not_a_delta("it removes {} twice", in_quotes(name));
  }
  for (const Delta::Renamed& renamed : delta.renamed) {
    const auto known = base.find(renamed.from);
    if (!known) return not_a_delta("it renames {}, which its base lacks", in_quotes(renamed.from));
    if (changed.find(renamed.name))
      return not_a_delta("it renames {} to {}, and has it too", in_quotes(renamed.from),
                         in_quotes(renamed.name));
    if (!seen.insert(renamed.from).second)
      return not_a_delta("it removes or renames {} twice", in_quotes(renamed.from));
    const auto size_bytes = data_size_bytes(renamed.dtype, renamed.shape);
    if (!size_bytes || *size_bytes != base[*known].data.size_bytes) {
      return not_a_delta("it renames {} to {} as {} {}, which is not the size of its bytes",
                         in_quotes(renamed.from), in_quotes(renamed.name), name_of(renamed.dtype),
                         shape_text(renamed.shape));
    }
  }
  return {};
}

}  // namespace stfs
