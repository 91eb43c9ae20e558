#include "tests/support/archive_mutator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/format/dtype.h"
#include "core/format/json_string.h"

namespace stfs::test {
namespace {

using namespace std::string_view_literals;

// The most data that an archive gets, whatever its header says. Archives with a damaged text get less.
constexpr std::uint64_t kMostDataBytes = std::uint64_t{80} << 10U;
constexpr std::uint64_t kMostDamagedBytes = std::uint64_t{16} << 10U;
constexpr std::size_t kLengthBytes = 8;

constexpr std::array kNames = {""sv,   "."sv,    ".."sv, "/"sv,  "a/b"sv,    "__metadata__"sv, "dtype"sv,
                               "\n"sv, "\""sv,   "\\"sv, "\0"sv, "\u00e9"sv, "shape"sv,        "%41"sv,
                               " "sv,  "\x7f"sv, "~"sv,  "-"sv,  "--help"sv, "\u202e"sv,       "[0]"sv};

constexpr std::array kMetadata = {""sv, "null"sv, "{}"sv, R"({"format":"pt"})"sv,
                                  R"({"":"","a\nb":"\u0000\ud83d\ude00"})"sv};

std::string_view any_dtype(Choices& choices) {
  static const auto dtypes = all_dtypes();
  return name_of(one_of(choices, dtypes));
}

void change_name(TensorDraft& draft, std::span<const TensorDraft> like, Choices& choices) {
  switch (choices.below(5)) {
    case 0: draft.name = one_of(choices, like).name; return;
    case 1: draft.name = one_of(choices, kNames); return;
    case 2: draft.name += one_of(choices, kNames); return;
    case 3: draft.name.resize(draft.name.size() / 2); return;
    default: draft.name.append(choices.below(300), 'n'); return;
  }
}

void change_shape(TensorDraft& draft, Choices& choices) {
  std::vector<std::uint64_t>& shape = draft.shape;
  if (shape.empty()) {
    shape.resize(1 + choices.below(3));
    std::ranges::fill(shape, choices.below(3));
    return;
  }
  const std::size_t at = choices.below(shape.size());
  switch (choices.below(8)) {
    case 0: shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(at), 1); return;
    case 1: shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(at)); return;
    case 2: shape[at] += 1; return;
    case 3: shape[at] = shape[at] == 0 ? 1 : shape[at] - 1; return;
    case 4: std::swap(shape[at], shape.back()); return;
    case 5: shape[at] = extreme_number(choices, shape[at]); return;
    case 6:
      // The same number of elements in another shape.
      if (shape[at] % 2 != 0) return;
      shape[at] /= 2;
      shape.push_back(2);
      return;
    default: shape.resize(1 + choices.below(40), 1); return;
  }
}

void change_drafts(std::vector<TensorDraft>& drafts, std::span<const TensorDraft> like, Choices& choices) {
  if (drafts.empty()) {
    drafts.push_back(one_of(choices, like));
    return;
  }
  const std::size_t at = choices.below(drafts.size());
  switch (choices.below(10)) {
    case 0:
    case 1: change_name(drafts[at], like, choices); return;
    case 2: drafts[at].dtype = any_dtype(choices); return;
    case 3:
    case 4: change_shape(drafts[at], choices); return;
    case 5: drafts.erase(drafts.begin() + static_cast<std::ptrdiff_t>(at)); return;
    case 6: drafts.push_back(drafts[at]); return;
    case 7: std::swap(drafts[at], drafts.back()); return;
    case 8: drafts[at].hole_bytes += choices.below(2) == 0 ? 8 : extreme_number(choices, 0); return;
    default: drafts[at] = one_of(choices, like); return;
  }
}

/// Appends the tensor's entry of a header. Formatting this text takes most of the time of making an archive.
void append_tensor(std::string& json, const TensorDraft& draft, std::uint64_t begin, std::uint64_t end) {
  append_json_string(json, draft.name);
  json.append(":{\"dtype\":\"").append(draft.dtype).append("\",\"shape\":[");
  for (std::size_t at = 0; at < draft.shape.size(); ++at) {
    if (at > 0) json += ',';
    json += std::to_string(draft.shape[at]);
  }
  json.append("],\"data_offsets\":[").append(std::to_string(begin)).append(",");
  json.append(std::to_string(end)).append("]}");
}

Bytes join(std::string_view json, std::uint64_t length, std::uint64_t data_size_bytes, std::uint64_t seed) {
  Bytes bytes(kLengthBytes + json.size() + std::min(data_size_bytes, kMostDataBytes));
  put_number(bytes, 0, length);
  std::memcpy(bytes.data() + kLengthBytes, json.data(), json.size());
  std::size_t at = kLengthBytes + json.size();
  for (std::uint64_t word = seed << 32U; at < bytes.size(); at += sizeof word, ++word) {
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
  return bytes;
}

}  // namespace

std::uint64_t size_of(const TensorDraft& draft) {
  const auto dtype = dtype_named(draft.dtype);
  std::uint64_t bits = dtype ? bits_of(*dtype) : 0;
  for (const std::uint64_t size : draft.shape) bits *= size;
  return bits / 8;
}

Bytes write_archive(std::span<const TensorDraft> drafts, std::string_view metadata_json, std::uint64_t seed) {
  std::string json = "{";
  if (!metadata_json.empty()) json.append("\"__metadata__\":").append(metadata_json).append(",");
  std::vector<std::uint64_t> begins;
  std::uint64_t end = 0;
  for (const TensorDraft& draft : drafts) {
    begins.push_back(end + draft.hole_bytes);
    end = begins.back() + size_of(draft);
  }
  for (std::size_t count = 0; count < drafts.size(); ++count) {
    const std::size_t at = (seed + count) % drafts.size();
    append_tensor(json, drafts[at], begins[at], begins[at] + size_of(drafts[at]));
    json += ',';
  }
  if (json.back() == ',') json.pop_back();
  json += '}';
  return join(json, json.size(), end, seed);
}

Bytes make_archive(std::span<const TensorDraft> like, Choices& choices) {
  std::vector<TensorDraft> drafts;
  const bool has_most = choices.one_in(4);
  for (const TensorDraft& draft : like) {
    if (has_most ? !choices.one_in(4) : choices.one_in(3)) drafts.push_back(draft);
  }
  for (std::size_t changes = choices.below(4); changes > 0; --changes) change_drafts(drafts, like, choices);
  const std::string_view metadata = choices.one_in(4) ? one_of(choices, kMetadata) : ""sv;
  Bytes archive = write_archive(drafts, metadata, choices.below(1U << 31U));
  if (choices.one_in(2)) return archive;
  static const std::string other =
      R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b\n":{"dtype":"BF16","shape":[],)"
      R"("data_offsets":[24,26]},"__metadata__":{"k":"v"},"c":{"dtype":"F4","shape":[0],"data_offsets":[26,26]}}  )";
  mutate_archive(archive, other, choices);
  return archive;
}

void mutate_archive(Bytes& archive, std::string_view other_json, Choices& choices) {
  const auto text = [&](std::uint64_t begin, std::uint64_t size) {
    return std::string(reinterpret_cast<const char*>(archive.data()) + begin, size);
  };
  const std::uint64_t behind_length = std::min(archive.size(), kLengthBytes);
  const std::uint64_t json_bytes =
      std::min<std::uint64_t>(number_at(archive, 0), archive.size() - behind_length);
  std::string json = text(behind_length, json_bytes);
  std::uint64_t data_size_bytes = archive.size() - behind_length - json_bytes;
  for (std::size_t changes = 1 + choices.below(3); changes > 0; --changes) {
    mutate_json(json, other_json, choices);
  }
  // Mostly both sizes still fit, so the archive passes the first checks.
  const bool is_length_wrong = choices.one_in(12);
  const std::uint64_t length = is_length_wrong ? extreme_number(choices, json.size()) : json.size();
  if (choices.one_in(8)) data_size_bytes = extreme_number(choices, data_size_bytes);
  data_size_bytes = std::min(data_size_bytes, kMostDamagedBytes);
  archive = join(json, length, data_size_bytes, choices.below(1U << 31U));
  if (choices.one_in(30)) archive.resize(choices.below(archive.size() + 1));
}

Bytes make_noise(Choices& choices) {
  constexpr std::string_view kCharacters =
      "{}[]\":,0123456789-.eE \n\\utnaf__metadata__dtypeshapedata_offsetsU8";
  const bool is_text = choices.below(2) == 0;
  std::string text(choices.below(65), '\0');
  for (char& c : text) {
    c = is_text ? one_of(choices, kCharacters) : static_cast<char>(choices.below(256));
  }
  if (!is_text) {
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
  }
  if (!text.empty()) text[0] = '{';
  return join(text, text.size(), choices.below(3), 0);
}

}  // namespace stfs::test
