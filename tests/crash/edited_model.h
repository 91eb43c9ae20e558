// The content of a model as readers see it: one archive, or several with an index. The expected content is in
// maps, computed without the code under test.
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
  /// One shard: an archive without an index. Several: the index names no shard without tensors.
  std::vector<EditedContent> shards;

  [[nodiscard]] bool has_index() const { return shards.size() > 1; }
  friend bool operator==(const EditedModel&, const EditedModel&) = default;
};

/// Compares names, dtypes, shapes and metadata, but not the bytes.
bool have_same_structure(const EditedContent& one, const EditedContent& other);
/// Compares the indexes: the names in each shard, and the total number of bytes.
bool have_same_index(const EditedModel& one, const EditedModel& other);

/// The tensors at the beginning.
EditedModel first_model(std::size_t shards, Choices& choices);

/// The path to open: the archive's or the index's.
std::filesystem::path path_of(const EditedModel& model);
std::filesystem::path path_of_shard(const EditedModel& model, std::size_t shard);
/// Puts archives as the reference library writes them on the disk, and their index.
void put_model(DiskModel& disk, const EditedModel& model, const DiskAccess& access, Choices& choices);

/// Opens the model without other threads and without a map.
Result<std::unique_ptr<Model>> open_model(const EditedModel& layout, Access access, Storage& storage);
/// The structure of an opened model. Every byte is zero. Shards without tensors are empty.
/// @param layout  gives the number of shards.
EditedModel structure_of(const Model& model, const EditedModel& layout);
/// The shard in the file's bytes, as read_plainly() finds it.
std::optional<EditedContent> shard_in(const DiskImage& image, const EditedModel& layout, std::size_t shard);
/// All shards; nothing if one of them is refused.
std::optional<EditedModel> model_in(const DiskImage& image, const EditedModel& layout);
/// Why the index does not fit the model; nothing if it does.
std::optional<std::string> index_mistake(const DiskImage& image, const EditedModel& model);

/// The names that two models show differently, for a message.
std::string difference(const EditedModel& found, const EditedModel& due);

}  // namespace stfs::test
