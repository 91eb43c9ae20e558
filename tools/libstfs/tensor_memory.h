// The memory of a tensor's bytes: an archive, separate memory, or a device's arena.
//
// Handles, slices and the receivers of a tensor's data share one TensorMemory. The last of them frees it.
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

/// Any number of threads may use it.
class TensorMemory {
 public:
  virtual ~TensorMemory() = default;

  /// The address of the tensor's first byte in its device's memory. Null if the bytes have no address and can
  /// only be read.
  [[nodiscard]] virtual std::byte* address() const = 0;
  /// Checks that the bytes at the address still exist. EIO with code ArchiveCut: the file was truncated.
  [[nodiscard]] virtual Result<void> check() const { return {}; }
  /// Copies the elements that the slice selects, packed. ENOTSUP: this process cannot read the memory (a
  /// GPU).
  /// @param range  of the packed bytes of the slice.
  [[nodiscard]] virtual Result<void> read(const Slice& slice, ByteRange range,
                                          std::span<std::byte> to) const = 0;
  /// Returns writable memory with the same bytes in this range. A page is copied only when it is written to.
  /// @return null if this kind of memory has no private map.
  [[nodiscard]] virtual Result<std::shared_ptr<TensorMemory>> map_private(ByteRange range) const;

  [[nodiscard]] virtual device::Device device() const { return {}; }
  [[nodiscard]] virtual bool is_mapped() const { return false; }
  [[nodiscard]] virtual bool is_writable() const { return false; }
};

/// A second map of each of a model's archives, for libraries that do not know read-only memory. Bytes that
/// they write by mistake stay in this process; a write to the archive's own map would raise SIGSEGV.
/// Immutable; any number of threads may use it.
class ForgivingMaps {
 public:
  explicit ForgivingMaps(const Model& model);
  ForgivingMaps(const ForgivingMaps&) = delete;
  ForgivingMaps& operator=(const ForgivingMaps&) = delete;
  ~ForgivingMaps();

  /// Returns the address of the first byte of a shard's file, or null if this map failed.
  [[nodiscard]] std::byte* address(std::uint32_t shard) const {
    return static_cast<std::byte*>(maps_[shard].address);
  }

 private:
  struct Map {
    void* address = nullptr;
    std::size_t size_bytes = 0;
  };
  std::vector<Map> maps_;  // one for each shard
};

/// Returns the memory of a tensor of a model. The memory has an address if the archive is mapped and no
/// journal overrides the archive.
/// @param maps  the model's second maps, which then contain the address; or null.
std::shared_ptr<TensorMemory> archive_memory(std::shared_ptr<const Model> model,
                                             std::shared_ptr<const ForgivingMaps> maps, std::uint32_t tensor);

/// Returns the memory of a tensor on a device.
std::shared_ptr<TensorMemory> arena_memory(std::shared_ptr<device::Arena> arena, ByteRange place);

/// Copies the elements that the slice selects into new memory, packed.
Result<std::shared_ptr<TensorMemory>> copy_of(const TensorMemory& memory, const Slice& slice);

}  // namespace stfs::interface
