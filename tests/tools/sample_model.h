// The archive that `put` and `apply` change.
#pragma once

#include <cstdint>
#include <string>

#include "tests/support/archive_bytes.h"
#include "tests/support/temporary_directory.h"

namespace stfs::test {

/// Where the locks on an archive's bytes begin.
inline constexpr std::uint64_t kLockBase = std::uint64_t{1} << 62U;

/// Tensors f (F32 [2,3]), b (BF16 [4]), x (U8 [3]), none (U8 [0]), data "." * 35.
struct SampleModel {
  TemporaryDirectory directory;
  std::string header = R"({"f":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                       R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},)"
                       R"("x":{"dtype":"U8","shape":[3],"data_offsets":[32,35]},)"
                       R"("none":{"dtype":"U8","shape":[0],"data_offsets":[35,35]}})";
  std::string path = directory.write("m.safetensors", archive(std::string(35, '.')));

  [[nodiscard]] std::string archive(const std::string& data) const { return archive_bytes(header, data); }
  [[nodiscard]] bool is_untouched() const { return content_of(path) == archive(std::string(35, '.')); }
};

}  // namespace stfs::test
