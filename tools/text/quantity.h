// Numbers as people read and write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stfs::tools {

/// "512 B", "1.5 KiB", "16.0 GiB": powers of 1024, one decimal.
std::string human_size(std::uint64_t size_bytes);

/// "6,738,415,616".
std::string grouped(std::uint64_t number);

/// "1 tensor", "6,738 tensors".
std::string counted(std::uint64_t count, std::string_view noun);

/// "6.74 billion", or nothing below a million, where the number itself is read as easily.
std::string human_count(std::uint64_t number);

/// Bytes of "4096", "64K", "1.5G", "2GiB", "10MB": K, M, G, T, P with or without iB are powers of 1024,
/// with B powers of 1000, as in coreutils. Nothing where it is no size or does not fit 63 bits.
std::optional<std::uint64_t> parse_size(std::string_view text);

}  // namespace stfs::tools
