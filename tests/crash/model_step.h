// Edits of a model by names, patches, and functions that carry them out. Their effects are computed without
// the code under test.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/commit/commit_options.h"
#include "tests/crash/edited_model.h"

namespace stfs::test {

/// One transaction on a model.
struct ModelStep {
  struct Remove {
    std::string name;
  };
  struct Rename {
    std::vector<std::pair<std::string, std::string>> names;  // (from, to), all at once
  };
  struct Reinterpret {
    std::string name;
    EditedContent::Value value;
  };
  struct Put {
    std::string name;
    EditedContent::Value value;
  };
  struct SetMetadata {
    std::string key;
    std::optional<std::string> value;
  };
  using Change = std::variant<Remove, Rename, Reinterpret, Put, SetMetadata>;

  bool is_patch = false;
  bool is_compaction = false;
  std::vector<Change> changes{};              // of an edit, in this order
  std::map<std::uint32_t, EditStep> parts{};  // the steps of the shards that it changes
  bool changes_index = false;
  /// The model for which the step was made. Only its structure matters.
  EditedModel before{};
};

/// A random step: an edit, a patch, or a compaction (which names no part).
/// @param before  its bytes may have any value.
ModelStep random_model_step(const EditedModel& before, Choices& choices);
/// The model after the step. Nothing if the index or a changed shard has another structure than the step was
/// made for; then the step must fail.
std::optional<EditedModel> content_after(const ModelStep& step, const EditedModel& before);

/// Carries out a patch or an edit. The object still shows the old version afterwards.
Result<void> carry_out(const Model& model, const ModelStep& step, const CommitOptions& options);

}  // namespace stfs::test
