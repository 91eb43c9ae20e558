// Bytes of a file that a test changes in place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string_view>

namespace stfs::test {

inline void overwrite(const std::filesystem::path& file, std::uint64_t offset, std::string_view bytes) {
  std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!stream.flush()) throw std::runtime_error("overwrite");
}

inline void flip(const std::filesystem::path& file, std::uint64_t offset) {
  std::ifstream stream(file, std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const char flipped = static_cast<char>(stream.get() ^ 0x55);
  overwrite(file, offset, std::string_view(&flipped, 1));
}

}  // namespace stfs::test
