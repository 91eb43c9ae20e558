// What a generation consists of, as a server writes it and a client reads it.
//
//     {"generation": 1, "sources": ["/models/m.safetensors"],
//      "arenas": [{"device": "cpu", "size_bytes": 4096}],
//      "tensors": [{"name": "w", "dtype": "F32", "shape": [2, 3], "arena": 0, "offset": 0, "size_bytes":
//      24}]}
//
// A GPU is named by its UUID: indexes depend on a process' CUDA_VISIBLE_DEVICES.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "tools/device/arena.h"
#include "tools/serve/serve_client.h"
#include "tools/upload/plan.h"

namespace stfs::upload {

struct ManifestArena {
  std::string device;  // as parse_device() takes it
  std::uint64_t size_bytes = 0;
};

struct ServeManifest {
  std::uint64_t generation = 0;
  std::vector<std::string> sources;
  std::vector<ManifestArena> arenas;
  std::vector<LeasedTensor> tensors;
};

/// @return ENODEV for a GPU whose UUID is not known; EMSGSIZE where there are too many arenas.
Result<ServeManifest> manifest_of(std::uint64_t generation, std::vector<std::string> sources,
                                  const std::vector<std::shared_ptr<Arena>>& arenas, const Plan& plan);

std::string manifest_text(const ServeManifest& manifest);

/// Checks all that whoever maps the arenas relies on: that every tensor lies in its arena and has the size
/// that its dtype and shape make. @return EPROTO with what is wrong.
Result<ServeManifest> parse_manifest(std::string_view text);

}  // namespace stfs::upload
