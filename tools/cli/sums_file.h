// A record of a model's tensors. `stfs verify --record` writes it, `stfs verify --against` reads it.
//
//   {"version": 1, "source": "model.safetensors",
//    "tensors": {"a.weight": {"dtype": "BF16", "shape": [2,3], "checksum": "xxh128:<32 digits>"}, ...}}
//
// The record is sorted by name and has one tensor on each line, so `diff` can compare two records. Readers
// skip other members of an object; later versions may add some.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/format/dtype.h"
#include "core/storage/new_file.h"

namespace stfs::tools {

/// Larger than a record of all tensors that an index may name.
inline constexpr std::uint64_t kMaxSumsBytes = 512 << 20;

struct RecordedTensor {
  std::string name;
  Dtype dtype = Dtype::U8;
  std::vector<std::uint64_t> shape;
  std::string checksum;  // "xxh128:" and 32 digits
};

/// In the order of the names. Each name occurs once.
using Sums = std::vector<RecordedTensor>;

/// @param sums  in the order of the names.
Result<void> append_sums(NewFile& file, std::string_view source, const Sums& sums);

/// Reads a record. Any file is safe to read. The message of a failure starts with the path.
Result<Sums> read_sums(const std::string& path);

}  // namespace stfs::tools
