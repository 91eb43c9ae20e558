// `__metadata__` of an archive: pairs of text, in the header's order.
//
// One string holds all text. A vector of pairs of strings would be simpler, but would take up to 13 times the
// size of a header of tiny pairs. The parser promises at most four times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace stfs {

/// Used like a vector of pairs of key and value. The pairs are views, valid until the next change.
class Metadata {
 public:
  using value_type = std::pair<std::string_view, std::string_view>;
  class const_iterator;

  Metadata() = default;
  Metadata(std::initializer_list<value_type> entries) {
    for (const auto& [key, value] : entries) emplace_back(key, value);
  }

  [[nodiscard]] std::size_t size() const { return ends_.size(); }
  [[nodiscard]] bool empty() const { return ends_.empty(); }
  [[nodiscard]] value_type operator[](std::size_t i) const {
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1].value;
    const std::string_view text = text_;
    return {text.substr(begin, ends_[i].key - begin),
            text.substr(ends_[i].key, ends_[i].value - ends_[i].key)};
  }
  [[nodiscard]] const_iterator begin() const;
  [[nodiscard]] const_iterator end() const;
  /// Returns the first value of the key. Compares few keys after sort_keys(), otherwise each key.
  [[nodiscard]] std::optional<std::string_view> find(std::string_view key) const;
  /// Makes find() fast, for 4 bytes a pair. Call it after the last pair was added: find() ignores an order
  /// that lacks pairs. A repeated call costs little more than sorting the pairs that were added since.
  void sort_keys() { sort_more(order_); }
  /// A key that more than one pair has; nothing if all keys are different.
  [[nodiscard]] std::optional<std::string_view> repeated_key() const;
  /// Removes each pair whose key occurs again later, and sorts the keys for find().
  void keep_last_values();

  /// Throws std::length_error if all text together exceeds 4 GiB. No header can hold that much.
  void emplace_back(std::string_view key, std::string_view value) {
    if (std::numeric_limits<std::uint32_t>::max() - text_.size() < key.size() + value.size()) {
      throw std::length_error("metadata");
    }
    text_.append(key).append(value);
    ends_.push_back(
        {static_cast<std::uint32_t>(text_.size() - value.size()), static_cast<std::uint32_t>(text_.size())});
  }

  friend bool operator==(const Metadata& one, const Metadata& other) {
    return one.text_ == other.text_ && one.ends_ == other.ends_;
  }

 private:
  // The ends of a pair's key and value in text_. The key starts where the previous pair ends.
  struct Ends {
    std::uint32_t key = 0;
    std::uint32_t value = 0;
    friend bool operator==(const Ends&, const Ends&) = default;
  };

  /// Adds the positions that an order lacks.
  void sort_more(std::vector<std::uint32_t>& order) const;
  [[nodiscard]] bool is_sorted() const { return order_.size() == ends_.size(); }

  std::string text_;
  std::vector<Ends> ends_;
  std::vector<std::uint32_t> order_;  // positions of pairs by key, and of equal keys by position
};

class Metadata::const_iterator {
 public:
  using iterator_category = std::input_iterator_tag;  // C++17 demands real references for more
  using iterator_concept = std::forward_iterator_tag;
  using value_type = Metadata::value_type;
  using difference_type = std::ptrdiff_t;
  using reference = value_type;
  struct pointer {
    value_type pair;
    const value_type* operator->() const { return &pair; }
  };

  const_iterator() = default;
  const_iterator(const Metadata* metadata, std::size_t at) : metadata_(metadata), at_(at) {}
  reference operator*() const { return (*metadata_)[at_]; }
  pointer operator->() const { return {**this}; }
  const_iterator& operator++() {
    ++at_;
    return *this;
  }
  const_iterator operator++(int) {
    const_iterator before = *this;
    ++at_;
    return before;
  }
  friend bool operator==(const const_iterator&, const const_iterator&) = default;

 private:
  const Metadata* metadata_ = nullptr;
  std::size_t at_ = 0;
};

inline Metadata::const_iterator Metadata::begin() const {
  return {this, 0};
}
inline Metadata::const_iterator Metadata::end() const {
  return {this, size()};
}

}  // namespace stfs
