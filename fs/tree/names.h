// Maps tensor names to file names.
//
// A tensor may have any name that JSON can spell, but a directory cannot hold all of these names. Characters
// that a file name cannot have are percent-encoded. A name that is too long is cut and ends in a hash.
// InodeTable maps file names back to tensors, so names are never decoded, and an encoding only has to be
// readable.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

/// The directory of the views, in the root. No tensor's file may have this name.
inline constexpr std::string_view kViewsDirectory = ".safetensors";
/// Ends the names of NumPy files.
inline constexpr std::string_view kNpySuffix = ".npy";
/// The part of a name before `.npy`. Nothing if the name does not end in `.npy`.
inline std::optional<std::string_view> without_npy_suffix(std::string_view name) {
  if (!name.ends_with(kNpySuffix)) return std::nullopt;
  return name.substr(0, name.size() - kNpySuffix.size());
}
/// NAME_MAX of Linux, and the limit of FUSE.
inline constexpr std::size_t kMaxFileNameBytes = 255;

/// True if the name can be a file name unchanged. This is the common case, and nothing is copied for it.
bool is_plain_file_name(std::string_view name);

/// Encodes `%`, `/`, NUL, control characters and DEL as %XX. Also encodes the first dot of the whole names
/// `.` and `.safetensors`, and both dots of `..`. The empty name becomes `%`. A result over 255 bytes is cut
/// as in told_apart(). Different names may be cut to the same prefix, but very unlikely get the same hash.
std::string file_name_of(std::string_view name);

/// The name whose file_name_of() is this file name. Nothing if no name has it: it has a `%` without two
/// hexadecimal digits, a character that would be encoded, or the cut form of a long name.
std::optional<std::string> name_of_file(std::string_view file_name);

/// Returns `encoded`, cut between two characters to leave room, followed by `~` and 16 hexadecimal digits of
/// a hash of the true name. Use this form for names that are too long or would collide.
/// @param most_bytes  the greatest length of the result; less than kMaxFileNameBytes if a suffix follows.
std::string told_apart(std::string_view encoded, std::string_view true_name,
                       std::size_t most_bytes = kMaxFileNameBytes);

/// The greatest number of directories above a tensor in layout=tree. Real names have fewer than ten parts. A
/// malicious name with a million dots must not become a million directories.
inline constexpr std::size_t kMaxDepth = 64;

/// Splits a name at its dots, for layout=tree. Returns at least one part and at most kMaxDepth + 1: the last
/// part keeps all further dots. Parts may be empty.
std::vector<std::string_view> dotted_parts(std::string_view name);

}  // namespace stfs
