// Bytes, results and folders as plain values that a test compares.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"

namespace stfs::test {

inline std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::string text_of(const Error& error) {
  return std::string(name_of(error.code)) + ": " + error.message;
}

/// The errno of a failure; 0 for a success.
template <class T>
int errno_of(const Result<T>& result) {
  return result ? 0 : result.error().errno_value;
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

inline std::size_t count_files(const std::filesystem::path& directory) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(directory), {}));
}

}  // namespace stfs::test
