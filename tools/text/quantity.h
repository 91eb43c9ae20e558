// Formats numbers and lists for people, and parses the sizes that people type.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stfs::tools {

/// Returns, for example, "512 B", "1.5 KiB", "16.0 GiB": powers of 1024, one decimal.
std::string human_size(std::uint64_t size_bytes);

/// Returns, for example, "6,738,415,616".
std::string grouped(std::uint64_t number);

/// Returns, for example, "1 tensor", "6,738 tensors".
std::string counted(std::uint64_t count, std::string_view noun);

/// Returns, for example, "6.74 billion". Empty below a million, because the plain number is as easy to read.
std::string human_count(std::uint64_t number);

/// Returns, for example, "90 s", "15 min", "30 h": rounded down, in the largest unit of which there are at
/// least two.
std::string human_duration(std::chrono::seconds duration);

/// Returns "a", "a or b", "a, b or c". @param last  " or ", between the last two words.
template <class Words>
std::string joined(const Words& words, std::string_view last) {
  std::string text;
  for (std::size_t at = 0; at < words.size(); ++at) {
    if (at > 0) text += at + 1 == words.size() ? last : ", ";
    text += words[at];
  }
  return text;
}

/// Parses "4096", "64K", "1.5G", "2GiB", "10MB" into bytes. As in coreutils, K, M, G, T, P with or without iB
/// are powers of 1024; with B they are powers of 1000. Nothing if the text is no size or does not fit into 63
/// bits.
std::optional<std::uint64_t> parse_size(std::string_view text);

}  // namespace stfs::tools
