// Lists the first bytes of formats that users confuse with archives.
#include "core/format/foreign_file.h"

#include <algorithm>
#include <array>

namespace stfs {
namespace {

using std::string_view_literals::operator""sv;

struct Kind {
  std::string_view start;
  std::string_view text;
};

constexpr std::string_view kPickle =
    "is a pickle, as older versions of torch.save() write: load it with PyTorch and save it with safetensors";

constexpr std::array kKinds = {
    Kind{"version https://git-lfs",
         "is a Git LFS pointer, not the file itself: fetch it with `git lfs pull`"},
    Kind{"PK\x03\x04",
         "is a zip archive, as torch.save() writes: load it with PyTorch and save it with "
         "safetensors"},
    Kind{"GGUF", "is a GGUF file, the format of llama.cpp"},
    Kind{"\x80\x02", kPickle},
    Kind{"\x80\x03", kPickle},
    Kind{"\x80\x04", kPickle},
    Kind{"\x80\x05", kPickle},
    // Protocols 0 and 1 have no magic bytes. The entries below are the first bytes of common objects.
    Kind{"(dp", kPickle},
    Kind{"(lp", kPickle},
    Kind{"}q\x00"sv, kPickle},
    Kind{"]q\x00"sv, kPickle},
    Kind{"c__builtin__\n", kPickle},
    Kind{"ccollections\n", kPickle},
    Kind{"\x89HDF\r\n", "is an HDF5 file, as Keras writes"},
    Kind{"\x93NUMPY", "is a NumPy file"},
    Kind{"\x1f\x8b", "is a gzip file: unpack it first"},
    Kind{"\x28\xb5\x2f\xfd", "is a Zstandard file: unpack it first"},
    Kind{"\x00\x05\x16\x07"sv, "is a file of macOS with the attributes of another file (AppleDouble)"},
};

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/// `lower` is in lower case.
bool starts_with_in_any_case(std::string_view text, std::string_view lower) {
  const auto to_lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return text.size() >= lower.size() && std::ranges::equal(text.substr(0, lower.size()), lower, {}, to_lower);
}

}  // namespace

std::string_view foreign_file(std::span<const std::byte> start) {
  std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  for (const Kind& kind : kKinds) {
    if (text.starts_with(kind.start)) return kind.text;
  }
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  for (const std::string_view tag : {"<!doctype html"sv, "<html"sv, "<!--"sv, "<?xml"sv}) {
    if (starts_with_in_any_case(text, tag)) {
      return "is a page of HTML or XML, as a server sends in place of a file: download it again";
    }
  }
  if (text.starts_with('{') || text.starts_with('[')) {
    return "is a JSON text: an index must have a name that ends in .index.json";
  }
  return {};
}

}  // namespace stfs
