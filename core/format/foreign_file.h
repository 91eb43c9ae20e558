// Recognizes the format of a file that is no archive, by its first bytes, for error messages.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace stfs {

/// foreign_file() needs at most this many bytes.
inline constexpr std::size_t kForeignBytes = 64;

/// Returns a phrase that names the file's format, for the end of a message; empty for unknown formats.
/// @param start  the file's first bytes, as many as it has, at most kForeignBytes.
std::string_view foreign_file(std::span<const std::byte> start);

}  // namespace stfs
