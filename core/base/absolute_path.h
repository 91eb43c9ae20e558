// Paths as users give them: the absolute one, for attributes, `mount` and the log; the directory of a file.
#pragma once

#include <filesystem>
#include <string_view>

#include "core/base/error.h"

namespace stfs {

/// Returns true if a person has named a web server's file: https://HOST/PATH or http://HOST/PATH, a model
/// on the Hugging Face Hub: hf://ORG/MODEL, or an object of S3: s3://BUCKET/KEY.
inline bool is_url(const std::filesystem::path& path) {
  const auto begins = [&](std::string_view scheme) { return path.native().starts_with(scheme); };
  return begins("https://") || begins("http://") || begins("hf://") || begins("s3://");
}

/// Returns the scheme of a text that has the form of an address: SCHEME://REST. Empty for a path.
inline std::string_view scheme_of(const std::filesystem::path& path) {
  const std::string_view text = path.native();
  const std::size_t end = text.find("://");
  const bool has_scheme = end != text.npos && end > 0 && text.find('/') > end && text.front() != '.';
  return has_scheme ? text.substr(0, end) : std::string_view();
}

/// EINVAL: the path has the form of an address, and a file of this machine is meant. The kernel would take it
/// for a path below the working directory, where another user may have made a directory "https:".
Result<void> check_local(const std::filesystem::path& path);

/// Returns the path from the root, without ".". Keeps links and "..": the shards are in the link's directory,
/// and ".." after a link means another place. Fails if the working directory does not exist any more. Returns
/// an address as it is. EINVAL: it is an address of an unknown scheme.
Result<std::filesystem::path> absolute_path(const std::filesystem::path& path);

/// Returns the directory that contains the path's file: "." for a bare name.
inline std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace stfs
