// A model as its readers see it: one archive, or several with an index. Edits of it by names, patches, and
// who carries them out. The expected content is kept in maps, computed without the code under test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/commit/commit_options.h"
#include "core/model/model.h"
#include "tests/crash/edited_archive.h"
#include "tests/support/disk_model.h"

namespace stfs::test {

struct EditedModel {
  /// One archive, or several and an index. The index names no shard without tensors.
  std::vector<EditedContent> shards;

  [[nodiscard]] bool has_index() const { return shards.size() > 1; }
  friend bool operator==(const EditedModel&, const EditedModel&) = default;
};

/// Whether names, dtypes, shapes and metadata are the same, whatever the bytes are.
bool have_same_structure(const EditedContent& one, const EditedContent& other);

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

/// Some tensors to begin with.
EditedModel first_model(std::size_t shards, Choices& choices);

/// What to open: the archive or the index.
std::filesystem::path path_of(const EditedModel& model);
std::filesystem::path path_of_shard(const EditedModel& model, std::size_t shard);
/// Puts archives as the reference writes them there, and their index.
void put_model(DiskModel& disk, const EditedModel& model, const DiskAccess& access, Choices& choices);

/// Opens it in this thread alone, without a map.
Result<std::unique_ptr<Model>> open_model(const EditedModel& layout, Access access, Storage& storage);
/// The structure that an opened model shows. Every byte is zero. Shards without tensors are empty.
/// @param layout  says how many shards there are.
EditedModel structure_of(const Model& model, const EditedModel& layout);
/// Carries out a patch or an edit. The model shows the version before.
Result<void> carry_out(const Model& model, const ModelStep& step, const CommitOptions& options);

/// The shard in the file's bytes, as read_plainly() finds it.
std::optional<EditedContent> shard_in(const DiskImage& image, const EditedModel& layout, std::size_t shard);
/// All shards; nothing where one of them is refused.
std::optional<EditedModel> model_in(const DiskImage& image, const EditedModel& layout);
/// Why the index does not fit the model; nothing if it does.
std::optional<std::string> index_mistake(const DiskImage& image, const EditedModel& model);

/// The names that two models show differently, for a message.
std::string difference(const EditedModel& found, const EditedModel& due);

}  // namespace stfs::test
