// One open file of the operating system, for the storage that opens it (core/storage/file.cc).
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "core/base/unique_fd.h"
#include "core/storage/file.h"

namespace stfs {

/// @param name  what its errors begin with.
/// @param staged_path  the name that an "unnamed" file has for want of unnamed files; else empty. It is
///                     removed with the file, unless that was published.
std::unique_ptr<File> make_system_file(UniqueFd fd, std::string name, std::filesystem::path staged_path = {});

/// Storage::publish() of a file that make_system_file() has made.
Result<void> publish_system_file(File& file, const std::filesystem::path& path);

/// What lies at the path, following links; its mtime is 0.
/// @param name  what an error begins with.
Result<FileStatus> system_status(const std::filesystem::path& path, const std::string& name);

}  // namespace stfs
