// What the user named, as open models: each archive once, however many of its tensors are named.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/error.h"
#include "core/model/model.h"
#include "tools/target/target.h"

namespace stfs::upload {

struct Source {
  std::filesystem::path named;
  std::uint32_t model = 0;              // in models()
  std::optional<std::uint32_t> tensor;  // the one whose file in a mount was named
};

class Sources {
 public:
  explicit Sources(Storage& storage) : storage_(storage) {}

  /// One source, or, of a directory of archives without an index, one for each of them in order of their
  /// names.
  /// @return target.h's errors.
  Result<std::vector<Source>> open(const std::filesystem::path& named);

  [[nodiscard]] const std::vector<std::shared_ptr<const Model>>& models() const { return models_; }

 private:
  Result<std::uint32_t> model_at(const tools::TargetPath& path, const std::filesystem::path& named);

  Storage& storage_;
  std::vector<std::shared_ptr<const Model>> models_;
  std::unordered_map<std::string, std::uint32_t> known_;  // by path of archive
};

/// Of all files of a model.
std::string version_of(const Model& model);

}  // namespace stfs::upload
