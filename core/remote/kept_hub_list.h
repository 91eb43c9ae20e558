// The lists of files that the Hub has sent, for the time when it can't be reached.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace stfs {

/// Keeps the answer to a question in the cache directory of this user. A failure keeps nothing.
/// @param question  the address that was asked.
void keep_hub_list(const std::string& question, std::string_view json);

struct KeptHubList {
  std::string json;
  std::string written_at;  // for people: "2026-07-06 10:00"
};
/// Returns the last answer to this question. Nothing if none is kept, or if another user may write it.
std::optional<KeptHubList> find_hub_list(const std::string& question);

}  // namespace stfs
