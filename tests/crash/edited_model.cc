#include "tests/crash/edited_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/format/json_string.h"
#include "tests/crash/workload.h"

namespace stfs::test {
namespace {

constexpr std::string_view kIndexPath = "/models/model.safetensors.index.json";

std::uint64_t total_of(const EditedModel& model) {
  std::uint64_t total = 0;
  for (const EditedContent& shard : model.shards) {
    for (const auto& [name, value] : shard.tensors) total += value.bytes.size();
  }
  return total;
}

nlohmann::json index_of(const EditedModel& model) {
  nlohmann::json map = nlohmann::json::object();
  for (std::size_t shard = 0; shard < model.shards.size(); ++shard) {
    for (const auto& [name, value] : model.shards[shard].tensors)
      map[name] = path_of_shard(model, shard).filename().string();
  }
  return {{"metadata", {{"total_size", total_of(model)}}}, {"weight_map", map}};
}

std::string text_at(const DiskImage& image, const std::filesystem::path& path) {
  const auto bytes = image.content(image.inode_at(path.native()));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

bool have_same_structure(const EditedContent& one, const EditedContent& other) {
  return one.metadata == other.metadata &&
         std::ranges::equal(one.tensors, other.tensors, [](const auto& a, const auto& b) {
           return a.first == b.first && a.second.dtype == b.second.dtype && a.second.shape == b.second.shape;
         });
}

bool have_same_index(const EditedModel& one, const EditedModel& other) {
  if (!one.has_index()) return true;
  for (std::size_t shard = 0; shard < one.shards.size(); ++shard) {
    if (!std::ranges::equal(
            one.shards[shard].tensors, other.shards[shard].tensors, {},
            [](const auto& entry) { return entry.first; }, [](const auto& entry) { return entry.first; }))
      return false;
  }
  return total_of(one) == total_of(other);
}

EditedModel first_model(std::size_t shards, Choices& choices) {
  EditedModel model;
  std::set<std::string> known;
  for (std::size_t shard = 0; shard < shards; ++shard) {
    EditedContent& content = model.shards.emplace_back(first_content(choices));
    std::erase_if(content.tensors, [&](const auto& entry) { return known.contains(entry.first); });
    // An index names each of its shards.
    if (shards > 1 && content.tensors.empty())
      content.tensors["shard " + std::to_string(shard)] = random_value(choices);
    for (const auto& [name, value] : content.tensors) known.insert(name);
  }
  return model;
}

std::filesystem::path path_of(const EditedModel& model) {
  return model.has_index() ? kIndexPath : kArchivePath;
}

std::filesystem::path path_of_shard(const EditedModel& model, std::size_t shard) {
  if (!model.has_index()) return kArchivePath;
  return fmt::format("{}/model-{:05}-of-{:05}.safetensors", kDirectory, shard + 1, model.shards.size());
}

void put_model(DiskModel& disk, const EditedModel& model, const DiskAccess& access, Choices& choices) {
  for (std::size_t shard = 0; shard < model.shards.size(); ++shard) {
    const std::string bytes = tight_archive(model.shards[shard], choices.one_in(3) ? 7000 : 0);
    disk.put(path_of_shard(model, shard).native(), std::as_bytes(std::span(bytes)), access);
  }
  if (!model.has_index()) return;
  const std::string text = index_of(model).dump();
  disk.put(kIndexPath, std::as_bytes(std::span(text)), access);
}

Result<std::unique_ptr<Model>> open_model(const EditedModel& layout, Access access, Storage& storage) {
  ModelOptions options;
  options.access = access;
  options.storage = &storage;
  options.io = Io::Pread;
  options.uses_threads = false;
  return Model::open(path_of(layout), options);
}

EditedModel structure_of(const Model& model, const EditedModel& layout) {
  EditedModel found{std::vector<EditedContent>(layout.shards.size())};
  for (std::uint32_t at = 0; at < model.shards().size(); ++at) {
    std::size_t shard = 0;
    while (path_of_shard(layout, shard) != model.shards()[at].path) ++shard;
    if (!model.shards()[at].version) continue;
    const ArchiveVersion& version = model.version(at);
    for (const auto& [key, value] : version.metadata()) found.shards[shard].metadata.emplace(key, value);
    for (std::uint32_t position = 0; position < version.tensors().size(); ++position) {
      const Tensor tensor = version.tensors()[position];
      found.shards[shard].tensors[std::string(tensor.name)] = {std::string(name_of(tensor.dtype)),
                                                               {tensor.shape.begin(), tensor.shape.end()},
                                                               std::string(tensor.data.size_bytes, '\0')};
    }
  }
  return found;
}

std::optional<EditedContent> shard_in(const DiskImage& image, const EditedModel& layout, std::size_t shard) {
  return read_plainly(text_at(image, path_of_shard(layout, shard)));
}

std::optional<EditedModel> model_in(const DiskImage& image, const EditedModel& layout) {
  EditedModel found;
  for (std::size_t shard = 0; shard < layout.shards.size(); ++shard) {
    auto content = shard_in(image, layout, shard);
    if (!content) return std::nullopt;
    found.shards.push_back(std::move(*content));
  }
  return found;
}

std::optional<std::string> index_mistake(const DiskImage& image, const EditedModel& model) {
  if (!model.has_index()) return std::nullopt;
  const auto found = nlohmann::json::parse(text_at(image, kIndexPath), nullptr, false);
  if (found == index_of(model)) return std::nullopt;
  return "THE INDEX does not fit the shards: " + found.dump();
}

std::string difference(const EditedModel& found, const EditedModel& due) {
  std::string text;
  for (std::size_t shard = 0; shard < due.shards.size(); ++shard) {
    const EditedContent& one = found.shards[shard];
    const EditedContent& other = due.shards[shard];
    for (const auto& [name, value] : one.tensors) {
      const auto there = other.tensors.find(name);
      if (there == other.tensors.end()) {
        text += fmt::format(" {}: not due;", in_quotes(name));
      } else if (there->second != value) {
        text += fmt::format(" {}: another {};", in_quotes(name),
                            there->second.bytes == value.bytes ? "type" : "content");
      }
    }
    for (const auto& [name, value] : other.tensors)
      if (!one.tensors.contains(name)) text += fmt::format(" {}: missing;", in_quotes(name));
    if (one.metadata != other.metadata) text += " other metadata;";
  }
  return text;
}

}  // namespace stfs::test
