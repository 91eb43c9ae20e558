// The JSON of a header, read without a document tree: the lexer of nlohmann_json hands out one token
// at a time, and what is needed of it goes straight into the index's arenas.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/format/header.h"
#include "core/format/tensor_index_builder.h"

namespace stfs {

/// What the JSON says, its grammar and the types of its values checked (checks 4 and 5), its numbers
/// and names not yet.
struct ParsedHeader {
  TensorIndex::Builder tensors;
  Metadata metadata;
  std::vector<std::uint32_t> metadata_key_ends;  // as DuplicateName's, one per entry of metadata
};

/// Fails with InvalidHeader or InvalidHeaderDeserialization. May throw std::bad_alloc.
/// @param json  at most kMaxHeaderBytes.
Result<ParsedHeader> parse_header_json(std::string_view json);

/// Position of the opening quote of the string whose closing quote lies just before `end`.
std::uint64_t opening_quote(std::string_view json, std::uint64_t end);

}  // namespace stfs
