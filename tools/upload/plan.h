// What an upload will do, before it does any of it: which bytes of which archive end up where.
//
// A plan reads headers and nothing else. It remembers what the archives looked like, so that one that changes
// between plan and read is noticed and not mixed.
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

/// One thing that the user named.
struct SourceRequest {
  /// An archive, a model's index or directory, a mount, or the file of a tensor in a mount: what lies in a
  /// mount is resolved through its attributes, so that no byte passes through FUSE.
  std::filesystem::path path;
  /// Of tensors' names, as fnmatch(3), each with a slice at its end or without: `*.q_proj.weight[:128]`.
  /// None: all.
  std::vector<std::string> patterns;
};

struct PlanRequest {
  std::vector<SourceRequest> sources;
  DeviceRules rules;
  /// Convert every floating tensor to it; others stay.
  std::optional<Dtype> dtype;
  Storage* storage = &system_storage();  // must outlive the plan
};

/// A tensor, or a part of it, on one device. A replica is a PlannedTensor of its own.
struct PlannedTensor {
  std::string name;
  std::uint32_t model = 0;     // in Plan::models
  std::uint32_t tensor = 0;    // in that model
  std::optional<Slice> slice;  // of the tensor, or all of it; a shard is a slice
  Dtype source_dtype = Dtype::U8;
  Dtype dtype = Dtype::U8;           // on the device
  std::vector<std::uint64_t> shape;  // on the device
  std::uint64_t source_bytes = 0;    // before conversion
  std::uint32_t device = 0;          // in Plan::devices
  ByteRange place;                   // in that device's arena
};

struct PlannedDevice {
  Device device;
  std::uint64_t arena_bytes = 0;
};

struct Plan {
  std::vector<std::shared_ptr<const Model>> models;
  /// The identities of its files then: another text after any change.
  std::vector<std::string> model_versions;
  std::vector<PlannedDevice> devices;
  /// In the order in which they are read: by archive, then by offset.
  std::vector<PlannedTensor> tensors;
  /// Names that no rule has a device for.
  std::vector<std::string> left_out;

  [[nodiscard]] std::uint64_t read_bytes() const;
};

/// A directory without an index stands for all archives in it. Of a model as a whole nothing may be wrong; a
/// tensor may be selected once only, and no two of one name may lie on one device. A rule's shard does not go
/// with a slice.
/// @return EINVAL, ENOENT and the models' own errors, each with the path, pattern or name that is wrong: a
/// pattern
///         that fits nothing, a shard that does not divide, a dtype that can't be converted to.
Result<Plan> make_plan(const PlanRequest& request);

/// Whether every archive is still what it was when the plan was made. ESTALE, with its path.
Result<void> check_unchanged(const Plan& plan);

}  // namespace stfs::upload
