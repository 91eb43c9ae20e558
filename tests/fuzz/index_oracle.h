// A second, simple reader of an index, for core/model/model_index.h to be compared with.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace stfs::test {

/// The shard of each tensor.
using WeightMap = std::map<std::string, std::string>;

/// What an index says; nothing where the text must be refused.
/// @param is_sure  false where a number is too large for this reader, which then does not know.
std::optional<WeightMap> read_index(std::string_view text, bool& is_sure);

/// A name with one of these must not reach a terminal.
bool has_control(std::string_view text);

}  // namespace stfs::test
