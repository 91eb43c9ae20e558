// Opens the models that the user named. Each archive is opened once, even if several of its tensors are
// named.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/name_hash.h"
#include "core/model/model.h"
#include "tools/target/target.h"

namespace stfs::upload {

struct Source {
  std::uint32_t model = 0;              // index into models()
  std::optional<std::uint32_t> tensor;  // set if the user named a tensor's file in a mount
};

class Sources {
 public:
  explicit Sources(Storage& storage) : storage_(storage) {}

  /// Returns one source. For a directory of archives without an index, returns one source for each archive,
  /// in the order of their names.
  /// @return the errors of target.h.
  Result<std::vector<Source>> open(const std::filesystem::path& named);

  [[nodiscard]] const std::vector<std::shared_ptr<const Model>>& models() const { return models_; }

 private:
  Result<std::uint32_t> model_at(const tools::TargetPath& path, const std::filesystem::path& named);

  Storage& storage_;
  std::vector<std::shared_ptr<const Model>> models_;
  NameMap<std::string, std::uint32_t> known_;  // by the archive's path
};

}  // namespace stfs::upload
