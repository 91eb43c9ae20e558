// core/format/foreign_file.h
#include "core/format/foreign_file.h"

#include <string>
#include <utility>
#include <vector>

#include "support/catch.h"

using namespace stfs;

namespace {

std::string kind_of(const std::string& text) {
  return std::string(foreign_file(std::as_bytes(std::span(text))));
}

}  // namespace

TEST_CASE("files that are taken for archives are told by their first bytes", "[core][foreign_file]") {
  const std::vector<std::pair<std::string, std::string>> kinds = {
      {"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"},
      {"PK\x03\x04\x14", "zip archive"},
      {"GGUF\x03", "GGUF"},
      {"\x80\x02\x8a\nl", "pickle"},
      {"(dp0\nVweight\n", "pickle"},
      {std::string("}q\x00(X", 5), "pickle"},
      {"\n <!DOCTYPE html><html>", "page of HTML"},
      {"<HTML>", "page of HTML"},
      {"\x89HDF\r\n\x1a\n", "HDF5"},
      {"\x1f\x8b\x08", "gzip"},
      {std::string("\x00\x05\x16\x07", 4), "AppleDouble"},
      {"{\"metadata\":{}", "JSON text"},
  };
  for (const auto& [text, kind] : kinds) {
    CAPTURE(kind);
    CHECK(kind_of(text).find(kind) != std::string::npos);
    CHECK(kind_of(text).starts_with("is "));
  }
}

TEST_CASE("unknown bytes have no kind", "[core][foreign_file]") {
  for (const char* text : {"", " ", "P", "GGU", "\x10", "weights"}) {
    CAPTURE(text);
    CHECK(kind_of(text).empty());
  }
}
