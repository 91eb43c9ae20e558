// Describes a generation. The server writes the manifest and the client reads it.
//
//     {"generation": 1, "sources": ["/models/m.safetensors"],
//      "arenas": [{"device": "cpu", "size_bytes": 4096}],
//      "tensors": [{"name": "w", "dtype": "F32", "shape": [2, 3],
//                   "arena": 0, "offset": 0, "size_bytes": 24}]}
//
// The manifest names a GPU by its UUID, because indexes depend on the process's CUDA_VISIBLE_DEVICES.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/byte_range.h"
#include "core/base/error.h"
#include "core/format/dtype.h"
#include "tools/device/arena.h"
#include "tools/upload/plan.h"

namespace stfs::upload {

struct ManifestArena {
  std::string device;  // in a form that parse_device() accepts
  std::uint64_t size_bytes = 0;
};

struct LeasedTensor {
  std::string name;
  Dtype dtype = Dtype::U8;
  std::vector<std::uint64_t> shape;
  std::uint32_t arena = 0;  // index into the manifest's arenas
  ByteRange place;          // in that arena
};

struct ServeManifest {
  std::uint64_t generation = 0;
  std::vector<std::string> sources;
  std::vector<ManifestArena> arenas;
  std::vector<LeasedTensor> tensors;
};

/// @return ENODEV for a GPU whose UUID is unknown; EMSGSIZE if there are too many arenas.
Result<ServeManifest> manifest_of(std::uint64_t generation, std::vector<std::string> sources,
                                  const std::vector<std::shared_ptr<Arena>>& arenas, const Plan& plan);

std::string manifest_text(const ServeManifest& manifest);

/// Checks everything that a process relies on when it maps the arenas: every tensor lies in its arena and has
/// the size that follows from its dtype and shape. @return EPROTO with the mistake.
Result<ServeManifest> parse_manifest(std::string_view text);

}  // namespace stfs::upload
