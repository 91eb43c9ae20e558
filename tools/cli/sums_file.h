// A record of what a model's tensors were: `stfs verify --record` writes it, `--against` reads it.
//
//   {"version": 1, "source": "model.safetensors",
//    "tensors": {"a.weight": {"dtype": "BF16", "shape": [2,3], "checksum": "xxh128:<32 digits>"}, ...}}
//
// Sorted by name, one tensor a line, so that two records can be compared by `diff` too. What else an object
// holds is for versions to come, and skipped.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/format/dtype.h"
#include "core/storage/new_file.h"

namespace stfs::tools {

/// More than a record of all that an index may name.
inline constexpr std::uint64_t kMaxSumsBytes = 512 << 20;

struct RecordedTensor {
  std::string name;
  Dtype dtype = Dtype::U8;
  std::vector<std::uint64_t> shape;
  std::string checksum;  // "xxh128:" and 32 digits
};

/// In order of name, each once.
using Sums = std::vector<RecordedTensor>;

/// @param sums  in order of name.
Result<void> append_sums(NewFile& file, std::string_view source, const Sums& sums);

/// Any file is safe to read. The message of a failure starts with the path.
Result<Sums> read_sums(const std::string& path);

}  // namespace stfs::tools
