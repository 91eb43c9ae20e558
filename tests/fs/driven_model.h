// A sharded model without a kernel: shards and their index in a directory, and the file system of the model.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/fs/driven_filesystem.h"

namespace stfs::test {

/// { "weight_map": { NAME: SHARD.safetensors, ... } }
inline std::string index_text(const std::vector<std::pair<std::string, std::string>>& weights) {
  std::string json = R"({"weight_map":{)";
  for (const auto& [name, shard] : weights) {
    append_json_string(json, name);
    json += fmt::format(":\"{}.safetensors\",", shard);
  }
  if (json.back() == ',') json.pop_back();
  return json + "}}";
}

/// Two shards: `one` holds a.x and b, `two` holds a.y, c and an empty tensor.
class DrivenModel {
 public:
  explicit DrivenModel(const MountedModelOptions& options = {}, Storage& storage = system_storage())
      : DrivenModel(kWeights, options, storage) {}
  DrivenModel(const std::vector<std::pair<std::string, std::string>>& weights,
              const MountedModelOptions& options = {}, Storage& storage = system_storage()) {
    static_cast<void>(directory_.write("one.safetensors", archive_of(kOne, R"({"format":"pt"})")));
    static_cast<void>(directory_.write("two.safetensors", archive_of(kTwo, R"({"format":"pt","n":"2"})")));
    static_cast<void>(directory_.write("m.safetensors.index.json", index_text(weights)));
    auto model = Model::open(directory_.path(), {.access = Access::ReadWrite, .storage = &storage});
    if (!model) throw std::runtime_error(model.error().message);
    filesystem_ = std::make_unique<MountedModel>(std::move(*model), options);
  }

  MountedModel& operator*() const { return *filesystem_; }
  MountedModel* operator->() const { return filesystem_.get(); }
  [[nodiscard]] const TemporaryDirectory& directory() const { return directory_; }
  std::unique_ptr<MountedModel> take() { return std::move(filesystem_); }

  [[nodiscard]] Ino ino(std::string_view file_name, Ino parent = kRootIno) const {
    const auto found = filesystem_->lookup(parent, file_name);
    if (!found) throw std::runtime_error("no file " + std::string(file_name));
    return found->st_ino;
  }
  [[nodiscard]] Result<std::string> content(Ino ino) const {
    const auto bytes = filesystem_->read(ino, 0, 1 << 20);
    if (!bytes) return tl::unexpected(bytes.error());
    return text_of(bytes->copy().value());
  }
  [[nodiscard]] Result<std::string> read(std::string_view name) const { return content(ino(name)); }
  [[nodiscard]] std::string attribute(std::string_view name, std::string_view key) const {
    return filesystem_->extended_attribute(ino(name), fmt::format("user.safetensors.{}", key)).value();
  }
  /// Opens the file, writes and closes it. Returns the result of the close.
  Result<Stale> overwrite(Ino ino, std::string_view bytes) const {
    const auto file = filesystem_->open(ino, O_WRONLY, 1);
    if (!file) return tl::unexpected(file.error());
    auto written = filesystem_->write(**file, bytes_of(bytes), 0, 1);
    auto closed = written ? filesystem_->flush(**file, 1, 1) : written;
    static_cast<void>(filesystem_->release(*file));
    return closed;
  }

  static inline const Tensors kOne = {{"a.x", "AAAA"}, {"b", "BBBBBB"}};
  static inline const Tensors kTwo = {{"a.y", "YYY"}, {"c", "CCCCC"}, {"none", ""}};
  static inline const std::vector<std::pair<std::string, std::string>> kWeights = {
      {"a.x", "one"}, {"b", "one"}, {"a.y", "two"}, {"c", "two"}, {"none", "two"}};

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<MountedModel> filesystem_;
};

}  // namespace stfs::test
