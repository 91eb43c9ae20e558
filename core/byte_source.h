// Where an archive's bytes come from: a map of its file, or reads. Both answer alike; a map costs no copy,
// reads tell of a store's failures as errors where a map has only a signal (store.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/byte_range.h"
#include "core/error.h"
#include "core/file.h"

namespace stfs {

/// Auto: reads on the stores of store.h and where a file can't be mapped, else a map.
enum class Io : std::uint8_t { Auto, Mmap, Pread };

/// Any number of threads may read.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  /// @param file        of the archive; must outlive the source
  /// @param size_bytes  of the file, now
  static Result<std::unique_ptr<ByteSource>> open(const File& file, std::uint64_t size_bytes, Io io);

  /// The bytes of a range that is not empty and lay inside the file when it was opened: in the map, safe to
  /// touch now, or in `scratch`. EIO with code ArchiveCut where the file has become too short, EIO where its
  /// bytes can't be had.
  [[nodiscard]] virtual Result<std::span<const std::byte>> read(ByteRange range,
                                                                std::vector<std::byte>& scratch) const = 0;

  /// Lets `copy` take what it wants out of such a range, as it lies in the map: for who touches little of it
  /// here and there, and would have all of it made sure of. The rules of copy_guarded() hold for it.
  /// @return false where there is no map or some of the range is gone: read() tells.
  using Copy = std::function<void(std::span<const std::byte> bytes)>;
  [[nodiscard]] virtual bool copy_from(ByteRange range, const Copy& copy) const = 0;

  [[nodiscard]] virtual bool is_mapped() const = 0;
  /// Why Auto has decided for reads, for a person; empty where it has not.
  [[nodiscard]] std::string_view why_not_mapped() const { return why_not_mapped_; }

 private:
  std::string_view why_not_mapped_;
};

}  // namespace stfs
