// The user's settings for remote archives: variables of the environment, and small files.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace stfs {

/// Returns the value of a variable of the environment. Empty if it is not set.
std::string variable(const char* name);

/// Returns true if a variable is set to a word for yes: 1, ON, YES or TRUE, in any case.
bool is_set(const char* name);

/// Returns the text without spaces and ends of lines around it.
std::string trimmed_text(std::string_view text);

struct SmallFile {
  std::string text;
  bool is_own = false;  // see is_own()
};

/// Reads a regular file. Nothing if that is impossible.
/// @param most_bytes  a longer file is cut.
std::optional<SmallFile> small_file(const std::filesystem::path& path, std::size_t most_bytes);

/// Returns true if only this user or root may write the entry. Many systems give each user a group with the
/// user's number, and a umask of 002: then this group may write the entry as well. Returns false for a file
/// in another user's mount of FUSE, whose server may report any owner.
/// @param status  of the open entry, by fstat(2).
bool is_own(int descriptor, const struct stat& status);

}  // namespace stfs
