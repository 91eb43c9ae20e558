// Tells what a file is that is no archive, by its first bytes, so that an error can name it.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace stfs {

/// As many bytes are enough for foreign_file().
inline constexpr std::size_t kForeignBytes = 64;

/// What the file is instead of an archive, for the end of a message; empty for unknown files.
/// @param start  the file's first bytes, as many as it has, at most kForeignBytes.
std::string_view foreign_file(std::span<const std::byte> start);

}  // namespace stfs
