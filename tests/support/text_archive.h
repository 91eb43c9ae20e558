// Archives of U8 tensors, each a text.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/format/json_string.h"
#include "tests/support/archive_bytes.h"

namespace stfs::test {

/// Tensors of U8, in the order of the archive.
using Tensors = std::vector<std::pair<std::string, std::string>>;

inline std::string archive_of(const Tensors& tensors, std::string_view metadata = "") {
  std::string header = "{";
  std::string data;
  if (!metadata.empty()) header += fmt::format("\"__metadata__\":{},", metadata);
  for (const auto& [name, content] : tensors) {
    append_json_string(header, name);
    header += fmt::format(":{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", content.size(),
                          data.size(), data.size() + content.size());
    data += content;
  }
  if (header.back() == ',') header.pop_back();
  return archive_bytes(header + "}", data);
}

}  // namespace stfs::test
