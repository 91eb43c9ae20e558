// Reads the JSON of a header: into the index's arenas, without a document tree.
//
// This is the only reader of JSON for files that come from outside: headers, indexes and records of
// checksums. Its two steps are find_json_error(), which decides whether the text is JSON, and JsonCursor,
// which walks over the text. Neither copies the text. Both take constant memory in addition to their results.
// nlohmann_json cannot keep that promise: its message cites the last token several times, so refusing a
// header of 100 MB of line feeds took 2.7 GB.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/error.h"
#include "core/format/header.h"
#include "core/format/tensor_index_builder.h"

namespace stfs {

/// The contents of a header. Its grammar and the types of its values are checked (checks 4 and 5), its
/// numbers and names are not yet.
struct ParsedHeader {
  TensorIndex::Builder tensors;
  Metadata metadata;  // a key may be in it several times
};

/// Fails with InvalidHeader or InvalidHeaderDeserialization. May throw std::bad_alloc.
/// @param json  at most kMaxHeaderBytes.
Result<ParsedHeader> parse_header_json(std::string_view json);

}  // namespace stfs
