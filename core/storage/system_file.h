// Makes open files of the operating system, for the storage that opens them (core/storage/file.cc).
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "core/base/unique_fd.h"
#include "core/storage/file.h"

namespace stfs {

/// @param name  the beginning of its error messages.
/// @param staged_path  the name of an "unnamed" file on a file system without unnamed files; else empty. It
///                     is removed with the file, unless the file was published.
/// @param directory    what staged_path needs.
std::unique_ptr<File> make_system_file(UniqueFd fd, std::string name, std::filesystem::path staged_path = {},
                                       std::shared_ptr<const void> directory = nullptr);

/// Storage::publish() for a file of make_system_file().
Result<void> publish_system_file(File& file, const std::filesystem::path& path);

/// Status of the file at the path, following links. Its mtime is 0.
/// @param name  the beginning of an error message.
Result<FileStatus> system_status(const std::filesystem::path& path, const std::string& name);
/// Returns the status of a name: a link is not followed. EXDEV: another file system is mounted on it.
Result<FileStatus> system_status_of_name(const std::filesystem::path& path);

}  // namespace stfs
