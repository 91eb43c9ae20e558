// Where the bytes of a tensor lie: in an archive, in memory of its own, in a device's arena.
//
// Handles, slices and whoever was handed a tensor's data share one of these; its memory goes with the last of
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/model/model.h"
#include "core/tensor/slice.h"
#include "tools/device/arena.h"
#include "tools/device/device.h"

namespace stfs::interface {

/// Any number of threads.
class TensorMemory {
 public:
  virtual ~TensorMemory() = default;

  /// Address of the tensor's first byte in its device's memory, or null where it has none: its bytes can only
  /// be read.
  [[nodiscard]] virtual std::byte* address() const = 0;
  /// Whether what lies at the address is still there. EIO with code ArchiveCut where the file has been cut.
  [[nodiscard]] virtual Result<void> check() const { return {}; }
  /// Copies what the slice selects, packed. ENOTSUP where this process can't (a GPU).
  /// @param range  of the slice's own bytes.
  [[nodiscard]] virtual Result<void> read(const Slice& slice, ByteRange range,
                                          std::span<std::byte> to) const = 0;
  /// Memory with the same bytes in this range that may be written to, copied no sooner than it is.
  /// @return null where there is no such thing.
  [[nodiscard]] virtual Result<std::shared_ptr<TensorMemory>> map_private(ByteRange range) const;

  [[nodiscard]] virtual upload::Device device() const { return {}; }
  [[nodiscard]] virtual bool is_mapped() const { return false; }
  [[nodiscard]] virtual bool is_writable() const { return false; }
};

/// A second map of each of a model's archives, to be handed to those who know no read-only memory: what they
/// write to it by mistake stays in this process, where it would be a SIGSEGV in the archive's own map. Never
/// changes once made; any number of threads.
class ForgivingMaps {
 public:
  explicit ForgivingMaps(const Model& model);
  ForgivingMaps(const ForgivingMaps&) = delete;
  ForgivingMaps& operator=(const ForgivingMaps&) = delete;
  ~ForgivingMaps();

  /// Of the first byte of a shard's file, or null where it could not be mapped so.
  [[nodiscard]] std::byte* address(std::uint32_t shard) const {
    return static_cast<std::byte*>(maps_[shard].address);
  }

 private:
  struct Map {
    void* address = nullptr;
    std::size_t size_bytes = 0;
  };
  std::vector<Map> maps_;  // of each shard
};

/// The bytes of a tensor of a model; has an address where the archive is mapped and no journal lies over it.
/// @param maps  of the model, for that address to lie in; or null.
std::shared_ptr<TensorMemory> archive_memory(std::shared_ptr<const Model> model,
                                             std::shared_ptr<const ForgivingMaps> maps, std::uint32_t tensor);

/// A tensor in a device's memory.
std::shared_ptr<TensorMemory> arena_memory(std::shared_ptr<upload::Arena> arena, ByteRange place);

/// What the slice selects of it, packed, in memory of its own.
Result<std::shared_ptr<TensorMemory>> copy_of(const TensorMemory& memory, const Slice& slice);

}  // namespace stfs::interface
