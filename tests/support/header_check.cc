// Says for each file named on the command line whether our reader takes it for an archive, and why not:
// one line of JSON per file, for the tests that compare it with the reference library.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "core/format/header.h"
#include "core/format/json_string.h"

namespace {

stfs::Result<stfs::Header> check(const std::string& path) {
  const std::uint64_t file_size_bytes = std::filesystem::file_size(path);
  std::ifstream file(path, std::ios::binary);
  std::array<char, stfs::kHeaderLengthBytes> first{};
  file.read(first.data(), first.size());
  const auto begin = std::as_bytes(std::span(first)).first(static_cast<std::size_t>(file.gcount()));
  const auto length = stfs::header_length(begin, file_size_bytes);
  if (!length) return tl::unexpected(length.error());
  std::string json(*length, '\0');
  file.read(json.data(), static_cast<std::streamsize>(json.size()));
  return stfs::parse_header(json, file_size_bytes - stfs::kHeaderLengthBytes - *length);
}

std::string json_text(std::string_view text) {
  std::string out;
  stfs::append_json_string(out, text);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const auto header = check(argv[i]);
    fmt::print("{{\"file\":{},\"ok\":{}", json_text(argv[i]), header.has_value());
    if (header) {
      fmt::print(",\"tensors\":{}}}\n", header->tensors.size());
    } else {
      fmt::print(",\"code\":{},\"message\":{}}}\n", json_text(name_of(header.error().code)),
                 json_text(header.error().message));
    }
  }
  return 0;
}
