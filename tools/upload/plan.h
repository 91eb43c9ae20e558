// Plans an upload before any byte moves: maps the bytes of archives to places on devices.
//
// Planning reads only headers. The plan keeps the models open, and each archive remembers the identity of its
// file. An archive that changes between plan and read is therefore noticed, and old and new bytes are not
// mixed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/format/dtype.h"
#include "core/model/model.h"
#include "core/tensor/slice.h"
#include "tools/device/device.h"
#include "tools/device/device_rules.h"

namespace stfs::upload {

/// One source that the user named.
struct SourceRequest {
  /// An archive, a model's index or directory, a mount, or the file of a tensor in a mount. A path in a mount
  /// is resolved through its attributes, so no byte passes through FUSE.
  std::filesystem::path path;
  /// Patterns of tensors' names, as for fnmatch(3), each with an optional slice at its end:
  /// `*.q_proj.weight[:128]`. No patterns: all tensors.
  std::vector<std::string> patterns;
};

struct PlanRequest {
  std::vector<SourceRequest> sources;
  device::DeviceRules rules;
  /// Converts every floating tensor to this dtype. Scales (tools/device/tensor_scales.h) and other tensors
  /// stay as they are.
  std::optional<Dtype> dtype;
  /// Converts tensors that need their scales without these scales. False: make_plan() refuses to convert such
  /// tensors.
  bool casts = false;
  Storage* storage = &system_storage();  // must outlive the plan
};

/// A tensor or a part of one on one device. Each replica is a separate PlannedTensor.
struct PlannedTensor {
  std::string name;
  std::uint32_t model = 0;     // index into Plan::models
  std::uint32_t tensor = 0;    // position in that model
  std::optional<Slice> slice;  // the part of the tensor; nothing: all of it. A shard is a slice
  Dtype source_dtype = Dtype::U8;
  Dtype dtype = Dtype::U8;           // on the device
  std::vector<std::uint64_t> shape;  // on the device
  std::uint64_t source_bytes = 0;    // size before conversion
  std::uint32_t device = 0;          // index into Plan::devices
  ByteRange place;                   // in that device's arena
};

struct PlannedDevice {
  device::Device device;
  std::uint64_t arena_bytes = 0;
};

struct Plan {
  std::vector<std::shared_ptr<const Model>> models;
  std::vector<PlannedDevice> devices;
  /// The tensors in the order in which they are read: by archive, then by offset.
  std::vector<PlannedTensor> tensors;
  /// Names of tensors that match no rule.
  std::vector<std::string> left_out;

  [[nodiscard]] std::uint64_t read_bytes() const;
  /// Returns the archive that holds a planned tensor.
  [[nodiscard]] const ArchiveReader& archive_of(const PlannedTensor& tensor) const;
  /// Returns the offset of a planned tensor's first element in that archive's file.
  [[nodiscard]] std::uint64_t file_offset(const PlannedTensor& tensor) const;
};

/// Plans the upload. A directory without an index means all archives in it. A model that is uploaded whole
/// must have no problems. A tensor may be selected only once, and one device must not get two tensors of the
/// same name. A rule with a shard cannot be combined with a slice.
/// @return EINVAL, ENOENT and the models' errors. The message names the wrong path, pattern or tensor: a
///   pattern that matches nothing, a shard that does not divide evenly, a dtype that is no conversion target,
///   a tensor that would be converted without its scales.
Result<Plan> make_plan(const PlanRequest& request);

/// Fails with ESTALE and the archive's path if an archive has changed since the plan was made.
Result<void> check_unchanged(const Plan& plan);

}  // namespace stfs::upload
