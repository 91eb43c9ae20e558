// The content of a model as texts to compare.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model.h"

namespace stfs::test {

/// In the order of the model's tensors.
inline std::vector<std::string> names_of(const Model& model) {
  std::vector<std::string> names;
  for (std::uint32_t at = 0; at < model.tensors().size(); ++at) names.emplace_back(model.tensors()[at].name);
  return names;
}

inline std::string tensor_content(const Model& model, std::string_view name) {
  const auto tensor = model.tensors().find(name);
  if (!tensor) throw std::runtime_error("no tensor " + std::string(name));
  std::vector<std::byte> scratch;
  const auto bytes = model.archive_of(*tensor).read(model.file_range(*tensor), scratch);
  if (!bytes) throw std::runtime_error(bytes.error().message);
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

}  // namespace stfs::test
