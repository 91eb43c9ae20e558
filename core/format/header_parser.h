// Parses the JSON of a header without a document tree. The lexer of nlohmann_json delivers one token at a
// time, and the needed parts go directly into the index's arenas.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/format/header.h"
#include "core/format/tensor_index_builder.h"

namespace stfs {

/// The content of the JSON. Its grammar and the types of its values have been checked (checks 4 and 5), its
/// numbers and names have not.
struct ParsedHeader {
  TensorIndex::Builder tensors;
  Metadata metadata;
  std::vector<std::uint32_t> metadata_key_ends;  // as in DuplicateName, one per entry of metadata
};

/// Fails with InvalidHeader or InvalidHeaderDeserialization. May throw std::bad_alloc.
/// @param json  at most kMaxHeaderBytes.
Result<ParsedHeader> parse_header_json(std::string_view json);

/// Returns the position of a string's opening quote. `end` is just behind its closing quote.
std::uint64_t opening_quote(std::string_view json, std::uint64_t end);

}  // namespace stfs
