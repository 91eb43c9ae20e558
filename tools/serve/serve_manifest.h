// Describes a generation. The server writes the manifest and the client reads it.
//
//     {"generation": 1, "server": 4711, "sources": ["/models/m.safetensors"], "version": "000042",
//      "arenas": [{"device": "cpu", "size_bytes": 4096, "number": 128}],
//      "tensors": [{"name": "w", "dtype": "F32", "shape": [2, 3],
//                   "arena": 0, "offset": 0, "size_bytes": 24, "changed_in": 1}]}
//
// Generations of a server may share arenas: an arena with the same number is the same memory. `changed_in` is
// the generation in which the tensor's bytes changed last: a holder of that generation, or of a later one,
// has them.
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
#include "tools/serve/served_layout.h"
#include "tools/upload/plan.h"

namespace stfs::serve {

struct ManifestArena {
  std::string device;  // in a form that parse_device() accepts
  std::uint64_t size_bytes = 0;
  std::uint64_t number = 0;  // unique in its server
};

struct LeasedTensor {
  std::string name;
  Dtype dtype = Dtype::U8;
  std::vector<std::uint64_t> shape;
  std::uint32_t arena = 0;  // index into the manifest's arenas
  ByteRange place;          // in that arena
  std::uint64_t changed_in = 0;
};

/// The description of a generation, without its tensors.
struct ServedIdentity {
  std::uint64_t generation = 0;
  std::uint64_t server = 0;          // a random number by which clients recognize a server
  std::vector<std::string> sources;  // absolute paths
  std::string version;               // of the weight sync; empty: unknown
};

struct ServeManifest {
  ServedIdentity identity;
  std::vector<ManifestArena> arenas;
  std::vector<LeasedTensor> tensors;
};

/// @return ENODEV for a GPU whose UUID is unknown; EMSGSIZE if there are too many arenas.
Result<ServeManifest> manifest_of(const ServedIdentity& identity, const ServedLayout& layout,
                                  const upload::Plan& plan);

std::string manifest_text(const ServeManifest& manifest);

/// Checks everything that a process relies on when it maps the arenas: arenas have different numbers; every
/// tensor is inside its arena, and has the size that follows from its dtype and shape. @return EPROTO with
/// the mistake.
Result<ServeManifest> parse_manifest(std::string_view text);

}  // namespace stfs::serve
