// A second, simple reader of an index. The tests compare core/model/model_index.h with it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace stfs::test {

/// The shard of each tensor.
using WeightMap = std::map<std::string, std::string>;

/// Returns the shard of each tensor of the index, or nothing if the text must be refused.
/// @param is_sure  false if a number is too large for this reader. Then the result is unknown.
std::optional<WeightMap> read_index(std::string_view text, bool& is_sure);

/// Returns true if the text contains a character that must not reach a terminal.
bool has_control(std::string_view text);

}  // namespace stfs::test
