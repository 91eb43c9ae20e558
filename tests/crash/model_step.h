// Edits of a model by names, patches of it, and who carries them out. What they do is computed without the
// code under test.
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
    std::vector<std::pair<std::string, std::string>> names;  // all at once: from, to
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
  std::map<std::uint32_t, EditStep> parts{};  // what becomes of the shards that it changes
  bool changes_index = false;
  /// The model that it was made for. Of that, only the structure counts.
  EditedModel before{};
};

/// A random step: an edit, a patch, or a compaction (which names no part).
/// @param before  bytes of any content.
ModelStep random_model_step(const EditedModel& before, Choices& choices);
/// What the step makes of the model; nothing: the shards that it changes, or the index, have another
/// structure than the step was made for. Then it must not be carried out.
std::optional<EditedModel> content_after(const ModelStep& step, const EditedModel& before);

/// Carries out a patch or an edit. The model shows the version before.
Result<void> carry_out(const Model& model, const ModelStep& step, const CommitOptions& options);

}  // namespace stfs::test
