// The numbers and names of published versions: "000042", and weight_v000042 for the directory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace stfs::sync {

/// The index of a version's directory. Its publisher writes it last.
inline constexpr std::string_view kVersionIndex = "model.safetensors.index.json";

/// A version as its publisher wrote it.
struct VersionNumber {
  std::string text;
  std::uint64_t number = 0;
};

/// Reads a number of decimal digits alone, with any zeros in front. Nothing for other texts, and for more
/// than 18 digits.
std::optional<VersionNumber> parse_version(std::string_view text);
/// "000042".
std::string version_text(std::uint64_t number);
/// "weight_v000042".
std::string version_directory_name(std::uint64_t number);
/// The version of a directory's file name, which must be one of version_directory_name(). Nothing for other
/// names.
std::optional<VersionNumber> version_of_directory(std::string_view file_name);

}  // namespace stfs::sync
