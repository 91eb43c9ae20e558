// Reads the index in two passes. json_syntax first checks that the text is JSON, in constant memory and
// depth, and finds the place of an error. The second pass reads the checked text forward.
#include "core/model/model_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>

#include "core/base/utf8.h"
#include "core/format/json_cursor.h"
#include "core/format/json_string.h"
#include "core/format/json_syntax.h"

namespace stfs {
namespace {

constexpr unsigned kMaxDepth = 127;  // as in a header
constexpr std::size_t kMaxFileNameBytes = 255;
constexpr std::string_view kSuffix = ".safetensors";

template <class... Parts>
tl::unexpected<Error> refuse(std::size_t at, fmt::format_string<Parts...> format, Parts&&... parts) {
  return fail(ErrorCode::InvalidArgument, EINVAL,
              fmt::format("byte {}: {}", at, fmt::format(format, std::forward<Parts>(parts)...)));
}

/// Returns the name of a shard as a file name: some writers put "./" before the name.
std::string_view without_dot(std::string_view name) {
  while (name.starts_with("./")) name.remove_prefix(2);
  return name;
}

/// Returns the reason why a shard may not have this name; "" if it may.
std::string_view shard_fault(std::string_view name) {
  if (name.find('/') != name.npos) {
    const bool leads_out = name.starts_with('/') || name.starts_with("../") || name.ends_with("/..") ||
                           name.find("/../") != name.npos;
    return leads_out ? "leads out of the directory of the index"
                     : "lies in a sub-folder: all shards must lie beside the index";
  }
  // No file name can contain NUL. Other control characters would reach terminals in messages.
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == '\x7f'; };
  if (std::ranges::any_of(name, is_control)) return "holds a control character";
  if (!name.ends_with(kSuffix)) return "does not end in .safetensors";
  if (name.size() > kMaxFileNameBytes) return "is longer than a file name can be";
  return "";
}

}  // namespace

/// Reads text that is known to be JSON.
class ModelIndexReader {
 public:
  explicit ModelIndexReader(std::string_view json) : json_(json) {}

  Result<ModelIndex> read() {
    if (json_.peek() != '{') return refuse(json_.position(), "the index is not a JSON object");
    bool has_metadata = false;
    bool has_weight_map = false;
    auto read = json_.for_each_member([&](std::string_view key, std::size_t key_at) -> Result<void> {
      if (key == "metadata") {
        if (std::exchange(has_metadata, true)) return given_twice(key, key_at);
        return read_metadata();
      }
      if (key == "weight_map") {
        if (std::exchange(has_weight_map, true)) return given_twice(key, key_at);
        return read_weight_map();
      }
      json_.take_value();
      return {};
    });
    RETURN_IF_ERROR(read);
    if (!has_weight_map) return refuse(0, "the index has no weight_map");
    return finish();
  }

 private:
  static tl::unexpected<Error> given_twice(std::string_view key, std::size_t key_at) {
    return fail(ErrorCode::DuplicateKey, EINVAL, fmt::format("byte {}: {} is given twice", key_at, key));
  }

  Result<void> read_metadata() {
    if (json_.peek() == 'n') {
      json_.take_value();
      return {};
    }
    if (json_.peek() != '{') return refuse(json_.position(), "metadata is not an object");
    bool has_total_size = false;
    return json_.for_each_member([&](std::string_view key, std::size_t key_at) -> Result<void> {
      json_.take_value();  // of any kind: some writers give total_size as a text, and nothing reads it
      if (key != "total_size") return {};
      if (std::exchange(has_total_size, true)) return given_twice("metadata.total_size", key_at);
      return {};
    });
  }

  Result<void> read_weight_map() {
    if (json_.peek() != '{') return refuse(json_.position(), "weight_map is not an object of file names");
    return json_.for_each_member([&](std::string_view tensor, std::size_t key_at) -> Result<void> {
      // Another user may have linked a private file to the index's name, so the message shows none of the
      // file's text.
      if (json_.peek() != '"') return refuse(json_.position(), "the shard of this tensor is not a string");
      const std::size_t value_at = json_.position();
      const std::string_view shard = without_dot(json_.take_string(shard_text_));
      const auto number = intern(shard);
      if (!number) {
        const std::string_view fault = shard_fault(shard);
        return refuse(value_at, "the name of this shard {}",
                      fault.empty() ? "exceeds the limit of shards" : fault);
      }
      index_.rows_.push_back({static_cast<std::uint32_t>(index_.names_.size()),
                              static_cast<std::uint32_t>(tensor.size()), *number,
                              static_cast<std::uint32_t>(key_at)});
      index_.names_.append(tensor.data(), tensor.size());
      return {};
    });
  }

  /// Returns the shard's number in order of appearance. Nothing if its name is faulty or there are too many
  /// shards.
  std::optional<std::uint32_t> intern(std::string_view shard) {
    if (last_ != numbers_.end() && last_->first == shard) return last_->second;  // the most frequent case
    last_ = numbers_.find(shard);
    if (last_ == numbers_.end()) {
      if (!shard_fault(shard).empty() || numbers_.size() == kMaxShards) return std::nullopt;
      last_ = numbers_.emplace(shard, static_cast<std::uint32_t>(numbers_.size())).first;
    }
    return last_->second;
  }

  Result<ModelIndex> finish() {
    std::vector<std::uint32_t> places(numbers_.size());
    for (auto& [name, number] : numbers_) {
      places[number] = static_cast<std::uint32_t>(index_.shards_.size());
      index_.shards_.push_back(name);
    }
    for (ModelIndex::Row& row : index_.rows_) row.shard = places[row.shard];
    if (const auto twins = index_.sort()) {
      return fail(ErrorCode::DuplicateKey, EINVAL,
                  fmt::format("byte {}: this tensor is given twice, first at byte {}", twins->second.key_at,
                              twins->first.key_at));
    }
    return std::move(index_);
  }

  using Numbers = std::map<std::string, std::uint32_t, std::less<>>;

  JsonCursor json_;
  ModelIndex index_;
  Numbers numbers_;
  Numbers::iterator last_ = numbers_.end();
  std::string shard_text_;
};

std::optional<std::uint32_t> ModelIndex::find(std::string_view tensor) const {
  const Row* row = std::lower_bound(rows_.begin(), rows_.end(), tensor,
                                    [&](const Row& a, std::string_view b) { return name_of(a) < b; });
  if (row == rows_.end() || name_of(*row) != tensor) return std::nullopt;
  return row->shard;
}

std::optional<std::pair<ModelIndex::Row, ModelIndex::Row>> ModelIndex::sort() {
  const auto is_before = [&](const Row& a, const Row& b) {
    const int compared = name_of(a).compare(name_of(b));
    return compared != 0 ? compared < 0 : a.key_at < b.key_at;
  };
  // Most writers have sorted the names.
  if (!std::is_sorted(rows_.begin(), rows_.end(), is_before))
    std::sort(rows_.begin(), rows_.end(), is_before);
  names_.trim();
  rows_.trim();
  const Row* twin = std::adjacent_find(rows_.begin(), rows_.end(),
                                       [&](const Row& a, const Row& b) { return name_of(a) == name_of(b); });
  if (twin == rows_.end()) return std::nullopt;
  return std::pair(twin[0], twin[1]);
}

Result<ModelIndex> parse_model_index(std::string_view json) {
  return guard_memory([&]() -> Result<ModelIndex> {
    if (json.size() > kMaxModelIndexBytes) {
      return refuse(0, "an index of {} bytes, at most {} are allowed", json.size(), kMaxModelIndexBytes);
    }
    if (const std::size_t valid = valid_utf8_prefix(json); valid != json.size()) {
      return refuse(valid, "not UTF-8");
    }
    if (const auto error = find_json_error(json, kMaxDepth)) {
      return refuse(error->position, "not JSON: {}", error->why);
    }
    return ModelIndexReader(json).read();
  });
}

namespace {

/// Appends an object with the members that `append_value` gives. The cursor is at an object.
template <class AppendValue>
void copy_members(JsonCursor& cursor, std::string& out, std::string_view indent,
                  const AppendValue& append_value) {
  bool is_first = true;
  out += '{';
  static_cast<void>(cursor.for_each_member([&](std::string_view key, std::size_t) -> Result<void> {
    out += std::exchange(is_first, false) ? "\n" : ",\n";
    out += indent;
    append_json_string(out, key);
    out += ": ";
    append_value(key);
    return {};
  }));
  out += '\n';
  out += indent.substr(2);
  out += '}';
}

}  // namespace

Result<std::string> rewrite_model_index(std::string_view json,
                                        const std::map<std::string_view, std::string>& shard_of,
                                        std::uint64_t total_bytes) {
  return guard_memory([&]() -> Result<std::string> {
    std::string out;
    JsonCursor cursor(json);
    const auto append_metadata = [&](std::string_view key) {
      const std::string_view value = cursor.take_value();
      out += key == "total_size" && value != "null" ? fmt::format("{}", total_bytes) : std::string(value);
    };
    copy_members(cursor, out, "  ", [&](std::string_view key) {
      if (key == "metadata" && cursor.peek() == '{') {
        copy_members(cursor, out, "    ", append_metadata);
      } else if (key != "weight_map") {
        out += cursor.take_value();
      } else {
        cursor.take_value();
        out += '{';
        for (const auto& [tensor, shard] : shard_of) {
          out += out.back() == '{' ? "\n    " : ",\n    ";
          append_json_string(out, tensor);
          out += ": ";
          append_json_string(out, shard);
        }
        out += "\n  }";
      }
    });
    out += '\n';
    if (out.size() <= kMaxModelIndexBytes) return out;
    return fail(ErrorCode::InvalidArgument, EFBIG,
                fmt::format("the index would have {} bytes, at most {} are allowed", out.size(),
                            kMaxModelIndexBytes));
  });
}

}  // namespace stfs
