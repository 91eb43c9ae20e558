// An archive for the tests of stfs repack, and access to the repacked model.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/model/model.h"
#include "tests/support/archive_bytes.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace stfs::test {

/// Six tensors without alignment, in no order.
struct RepackSource {
  TemporaryDirectory directory;
  std::string path = directory.write(
      "m.safetensors", archive_bytes(R"({"__metadata__":{"format":"pt"},)"
                                     R"("odd":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                                     R"("layer.10.w":{"dtype":"F32","shape":[2],"data_offsets":[3,11]},)"
                                     R"("layer.2.w":{"dtype":"F32","shape":[2],"data_offsets":[11,19]},)"
                                     R"("layer.2.b":{"dtype":"F16","shape":[2],"data_offsets":[19,23]},)"
                                     R"("count":{"dtype":"I64","shape":[],"data_offsets":[23,31]},)"
                                     R"("empty":{"dtype":"F32","shape":[0],"data_offsets":[31,31]}})",
                                     std::string("odd") + floats({1, 1e30F}) + floats({-2, 0.5F}) +
                                         std::string("\x00\x3C\x00\x7B", 4) + "12345678"));

  static std::string floats(const std::vector<float>& values) {
    std::string bytes(values.size() * sizeof(float), '\0');
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  [[nodiscard]] std::string at(const std::string& name) const { return directory / name; }
  /// The names of all files beside the source.
  [[nodiscard]] std::vector<std::string> others() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory / ".")) {
      if (entry.path().filename() != "m.safetensors") names.push_back(entry.path().filename());
    }
    std::ranges::sort(names);
    return names;
  }
};

inline std::unique_ptr<Model> repacked(const std::string& path) {
  auto model = Model::open(path, {});
  REQUIRE(model);
  return std::move(*model);
}

using Names = std::vector<std::string>;

}  // namespace stfs::test
