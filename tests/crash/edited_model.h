// A model as its readers see it: one archive, or several with an index. Edits of it by names, patches, and
// who carries them out. The expected content is kept in maps, computed without the code under test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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
/// Whether both have one index: which shard has which names, and how many bytes there are.
bool have_same_index(const EditedModel& one, const EditedModel& other);

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
/// The shard in the file's bytes, as read_plainly() finds it.
std::optional<EditedContent> shard_in(const DiskImage& image, const EditedModel& layout, std::size_t shard);
/// All shards; nothing where one of them is refused.
std::optional<EditedModel> model_in(const DiskImage& image, const EditedModel& layout);
/// Why the index does not fit the model; nothing if it does.
std::optional<std::string> index_mistake(const DiskImage& image, const EditedModel& model);

/// The names that two models show differently, for a message.
std::string difference(const EditedModel& found, const EditedModel& due);

}  // namespace stfs::test
