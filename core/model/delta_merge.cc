// Compares the delta's tensors and metadata with those of the base.
#include "core/model/delta_merge.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "core/base/name_hash.h"

namespace stfs {

Result<DeltaMerge> merge_of(const Delta& delta, const Model& changed, const Model& base) {
  return guard_memory([&]() -> Result<DeltaMerge> {
    if (auto fits = check_delta(delta, changed.tensors(), base.tensors()); !fits)
      return pass_on(std::move(fits));
    DeltaMerge merge;
    merge.removed = delta.removed;
    merge.renamed = delta.renamed;
    NameSet<std::string_view> gone;  // names that no tensor of the base has any more
    for (const Delta::Renamed& renamed : merge.renamed) gone.insert(renamed.from);
    for (std::uint32_t at = 0; at < changed.tensors().size(); ++at) {
      const Tensor tensor = changed.tensors()[at];
      merge.size_bytes += tensor.data.size_bytes;  // no overflow: less than the file's size
      const auto known = base.tensors().find(tensor.name);
      if (!known || gone.contains(tensor.name)) {
        merge.added.push_back(at);
        continue;
      }
      const Tensor before = base.tensors()[*known];
      const bool is_same = before.dtype == tensor.dtype && std::ranges::equal(before.shape, tensor.shape);
      (is_same ? merge.replaced : merge.remade).push_back(at);
    }
    for (const auto& [key, value] : base.metadata()) {
      if (!delta.metadata.find(key)) merge.metadata.emplace_back(key, std::nullopt);
    }
    for (const auto& [key, value] : delta.metadata) {
      if (base.metadata().find(key) != value) merge.metadata.emplace_back(key, value);
    }
    return merge;
  });
}

Result<void> add_to(ModelEdit& edit, const DeltaMerge& merge, const Model& changed) {
  for (const std::string& name : merge.removed) {
    if (auto done = edit.remove(name); !done) return done;
  }
  std::vector<ModelEdit::Renaming> renamings;
  for (const Delta::Renamed& renamed : merge.renamed) renamings.push_back({renamed.from, renamed.name});
  if (auto done = edit.rename(renamings); !done) return done;
  for (const Delta::Renamed& renamed : merge.renamed) {
    if (auto done = edit.reinterpret(renamed.name, renamed.dtype, renamed.shape); !done) return done;
  }
  for (const auto* positions : {&merge.replaced, &merge.remade, &merge.added}) {
    for (const std::uint32_t at : *positions) {
      const Tensor tensor = changed.tensors()[at];
      auto done =
          edit.put(std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()});
      if (!done) return done;
    }
  }
  for (const auto& [key, value] : merge.metadata) {
    if (auto set = edit.set_metadata(key, value); !set) return set;
  }
  return {};
}

}  // namespace stfs
