#include "core/model/neighbours.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/absolute_path.h"
#include "core/format/json_string.h"
#include "core/model/delta.h"
#include "core/model/model_directory.h"

namespace stfs {
namespace {

constexpr std::size_t kMostOpened = 16;

}  // namespace

std::vector<std::string> models_beside(const Model& model) {
  std::vector<std::string> names;
  if (!model.has_index() || is_url(model.path())) return names;
  const std::filesystem::path directory = model.path().parent_path();
  const auto found = list_model_directory(directory);
  if (!found) return names;
  std::size_t opened = 0;
  for (const std::string& name : found->archives) {
    const auto is_it = [&](const Shard& shard) { return shard.path.filename() == name; };
    if (std::ranges::any_of(model.shards(), is_it)) continue;
    if (name.find("-of-") != name.npos) continue;  // a shard of another index is no whole model
    if (++opened > kMostOpened) break;
    const auto other = Model::open(directory / name, {.links = Links::Trusted});
    // An archive without tensors is a shard whose tensors were all deleted.
    if (other && (*other)->tensors().size() != 0 && !is_delta((*other)->metadata())) names.push_back(name);
  }
  return names;
}

std::string models_beside_text(const Model& model) {
  const std::vector<std::string> names = models_beside(model);
  if (names.empty()) return {};
  std::string more;
  if (names.size() > 1) more = fmt::format(" and {} more", names.size() - 1);
  return fmt::format("{}: also holds the model {}{}, which the index does not name: name the file to use it",
                     model.path().parent_path().string(), in_quotes(names.front()), more);
}

}  // namespace stfs
