// Tensor name -> file name.
//
// A tensor may have any name that JSON can spell; a directory can't hold every one of them. What it
// can't hold is percent-encoded, a name that is too long is cut and told apart by a hash. The way back
// is a table (InodeTable), never decoding, so an encoding only has to be readable.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace stfs {

/// The directory of the views, at the root; no tensor may take its name.
inline constexpr std::string_view kViewsDirectory = ".safetensors";
/// NAME_MAX of Linux and of FUSE.
inline constexpr std::size_t kMaxFileNameBytes = 255;

/// True where the name can stand in a directory as it is: the common case, in which nothing is copied.
bool is_plain_file_name(std::string_view name);

/// `%`, `/`, NUL, control characters and DEL become %XX; so does the first dot of a whole name `.`,
/// `..` or `.safetensors`; the empty name becomes a lone `%`. A result over 255 bytes is cut as in
/// told_apart(). Different names may be cut to the same prefix, hardly to the same hash.
std::string file_name_of(std::string_view name);

/// encoded, cut between two characters to leave room, then `~` and 16 hexadecimal digits of a hash of
/// the true name: the form for what is too long or would collide.
std::string told_apart(std::string_view encoded, std::string_view true_name);

/// Directories above a tensor in layout=tree. Real names have fewer than ten parts; a hostile one of a
/// million dots must not become a million directories.
inline constexpr std::size_t kMaxDepth = 64;

/// The parts of a name between its dots, for layout=tree. Always at least one; parts may be empty; the
/// last one keeps its dots where there would be more than kMaxDepth + 1.
std::vector<std::string_view> dotted_parts(std::string_view name);

}  // namespace stfs
