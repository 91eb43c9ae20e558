// What a commit of a delta changes in its base.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/model/delta.h"
#include "core/model/model.h"
#include "core/model/model_edit.h"

namespace stfs {

/// Immutable once made. Positions are those of tensors of the delta's archive.
struct DeltaMerge {
  std::vector<std::uint32_t> replaced;  // the base has them with the same dtype and shape
  std::vector<std::uint32_t> remade;    // the base has them with another dtype or shape
  std::vector<std::uint32_t> added;     // the base lacks them
  std::vector<std::string> removed;     // names of tensors of the base
  std::vector<Delta::Renamed> renamed;
  /// Keys that change, each with its new value; nothing: the key goes.
  std::vector<std::pair<std::string, std::optional<std::string>>> metadata;
  std::uint64_t size_bytes = 0;  // of all tensors of the delta

  /// Whether only bytes change. An ordinary transaction then does it, which moves nothing in the base.
  [[nodiscard]] bool is_patch() const {
    return remade.empty() && added.empty() && removed.empty() && renamed.empty() && metadata.empty();
  }
};

/// @param delta  the keys of `changed`.
/// @param changed  the delta's archive, as a model of its own.
/// @return InvalidArgument: check_delta() refuses the base.
Result<DeltaMerge> merge_of(const Delta& delta, const Model& changed, const Model& base);

/// Makes all changes of the merge in an edit of the base. The caller stages the bytes of the delta's tensors.
Result<void> add_to(ModelEdit& edit, const DeltaMerge& merge, const Model& changed);

}  // namespace stfs
