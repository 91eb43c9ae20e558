// Plans the archive or the shards that `stfs repack` writes: the tensors, their order, their dtypes, and
// their files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/format/dtype.h"
#include "core/model/model.h"
#include "tools/device/tensor_scales.h"

namespace stfs::tools {

enum class TensorOrder : std::uint8_t {
  Source,     // as in the source's data; of shards one after the other
  Name,       // by name; runs of digits compare as numbers, so layer 2 comes before layer 10
  Reference,  // as the reference library writes: by descending alignment, then by name
};

/// The handling of tensors that need their scales (tools/device/tensor_scales.h), if a rule converts them.
enum class Quantized : std::uint8_t {
  Refuse,      // plan_repack() fails
  Dequantize,  // the values are multiplied by their scales, and the scales are left out
  Cast,        // the values are converted without their scales, which stay
};

/// Converts the floating-point tensors whose names match. Scales stay, unless a glob other than "*" matches
/// them; then a dtype that can't hold all their values is refused.
struct DtypeRule {
  std::string glob;
  Dtype dtype = Dtype::F32;
};

struct RepackOptions {
  /// The archive; with shard_bytes, the index. The name of an index ends in kModelIndexSuffix. The part
  /// before this suffix begins the names of the shards.
  std::filesystem::path out;
  std::vector<std::string> keep;  // globs; none: keep all
  std::vector<std::string> drop;  // globs; applied after `keep`
  std::vector<DtypeRule> dtypes;  // the first rule that matches a name decides
  Quantized quantized = Quantized::Refuse;
  TensorOrder order = TensorOrder::Source;
  std::optional<std::uint64_t> shard_bytes;  // the most data of a shard with several tensors
};

struct RepackedTensor {
  std::uint32_t source = 0;  // the position in the model
  Dtype dtype = Dtype::U8;
  std::uint64_t size_bytes = 0;
};

/// A tensor that a rule matches and that stays unchanged.
struct KeptDtype {
  std::uint32_t source = 0;
  std::string_view why;
};

/// One archive: the tensors [first, first + count) of the plan.
struct RepackedFile {
  std::filesystem::path path;
  std::size_t first = 0;
  std::size_t count = 0;
  std::uint64_t data_bytes = 0;
};

struct RepackPlan {
  std::vector<RepackedTensor> tensors;  // in the order of the data
  std::vector<RepackedFile> files;      // at least one
  std::filesystem::path out;            // the archive, or the index
  bool has_index = false;
  Metadata metadata;  // of each file
  std::vector<std::string> unused_globs;
  std::size_t left_out = 0;   // tensors of the model that the plan lacks
  std::size_t converted = 0;  // tensors with another dtype than in the model
  /// The scales that multiply the elements of a tensor, by its position in the model.
  std::map<std::uint32_t, device::TensorScales> scales;
  std::vector<KeptDtype> kept_dtypes;
  std::uint64_t data_bytes = 0;
};

/// Plans the files. EFBIG: the index would name more than kMaxShards shards. EINVAL (ValidationOverflow): a
/// converted tensor has more than 2^64-1 bits. EINVAL: a rule converts quantized values, and their scales
/// can't be applied or no option says how to handle them; or a rule narrows scales.
Result<RepackPlan> plan_repack(const Model& model, const RepackOptions& options);

/// Returns the plan of one archive with these tensors of a model, unchanged.
RepackPlan plan_of_tensors(const Model& model, const std::vector<std::uint32_t>& positions,
                           const std::filesystem::path& out, Metadata metadata);

/// Returns true if `a` is before `b` when runs of digits compare as numbers. Names that differ only in
/// leading zeros compare byte by byte.
bool is_before_by_number(std::string_view a, std::string_view b);

}  // namespace stfs::tools
