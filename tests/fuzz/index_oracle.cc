// Reads an index with nlohmann_json. Errors that only our reader must refuse are found in the events.
#include "tests/fuzz/index_oracle.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace stfs::test {
namespace {

constexpr unsigned kMaxDepth = 127;

/// The content of an index, read event by event, because a document would hide duplicate names.
class Oracle final : public nlohmann::json_sax<nlohmann::json> {
 public:
  /// Returns nothing if the text must be refused.
  static std::optional<WeightMap> read(std::string_view text, bool& is_sure) {
    Oracle oracle;
    // nlohmann_json takes a NUL as the end of the text, and skips a byte order mark.
    const bool is_odd = text.find('\0') != text.npos || text.starts_with("\xef\xbb\xbf");
    const bool is_json = !is_odd && nlohmann::json::sax_parse(text, &oracle);
    is_sure = !oracle.is_number_too_large_;
    if (!is_json || oracle.is_wrong_ || oracle.weight_maps_ != 1) return std::nullopt;
    return std::move(oracle.map_);
  }

  bool null() override { return value(Kind::Null); }
  bool boolean(bool) override { return value(Kind::Other); }
  bool number_integer(number_integer_t) override { return value(Kind::Number); }
  bool number_unsigned(number_unsigned_t) override { return value(Kind::Number); }
  bool number_float(number_float_t, const string_t&) override { return value(Kind::Number); }
  bool binary(binary_t&) override { return value(Kind::Other); }
  bool string(string_t& text) override {
    if (is_in_weight_map()) {
      while (text.starts_with("./")) text.erase(0, 2);
      const bool is_good = !has_control(text) && text.find('/') == text.npos && text.size() <= 255 &&
                           std::string_view(text).ends_with(".safetensors");
      is_wrong_ |= !is_good || !map_.emplace(key_, text).second;
    }
    return value(Kind::String);
  }
  bool start_object(std::size_t) override {
    value(Kind::Object);
    return open(true);
  }
  bool start_array(std::size_t) override {
    value(Kind::Other);
    return open(false);
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& text) override {
    key_ = text;
    if (depth_ == 1) {
      top_ = text;
      if (text == "weight_map") is_wrong_ |= ++weight_maps_ > 1;
      if (text == "metadata") is_wrong_ |= ++metadata_ > 1;
    }
    if (is_in_metadata() && text == "total_size") is_wrong_ |= ++total_sizes_ > 1;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& why) override {
    constexpr int kNumberOverflow = 406;  // json.exception.out_of_range.406: we look at the form alone
    is_number_too_large_ = why.id == kNumberOverflow;
    return false;
  }

 private:
  enum class Kind : std::uint8_t { Null, Number, String, Object, Other };

  [[nodiscard]] bool is_in_weight_map() const { return depth_ == 2 && top_ == "weight_map"; }
  [[nodiscard]] bool is_in_metadata() const { return depth_ == 2 && top_ == "metadata"; }
  bool value(Kind kind) {
    if (depth_ == 0) is_wrong_ |= kind != Kind::Object;
    if (depth_ == 1 && top_ == "weight_map") is_wrong_ |= kind != Kind::Object;
    if (depth_ == 1 && top_ == "metadata") is_wrong_ |= kind != Kind::Object && kind != Kind::Null;
    if (is_in_weight_map()) is_wrong_ |= kind != Kind::String;
    return true;
  }
  bool open(bool is_object) {
    is_wrong_ |= ++depth_ > kMaxDepth || (depth_ == 1 && !is_object);
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  WeightMap map_;
  std::string key_;
  std::string top_;
  unsigned depth_ = 0;
  unsigned weight_maps_ = 0;
  unsigned metadata_ = 0;
  unsigned total_sizes_ = 0;
  bool is_wrong_ = false;
  bool is_number_too_large_ = false;
};

}  // namespace

std::optional<WeightMap> read_index(std::string_view text, bool& is_sure) {
  return Oracle::read(text, is_sure);
}

bool has_control(std::string_view text) {
  return std::ranges::any_of(text,
                             [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == '\x7f'; });
}

}  // namespace stfs::test
