// A sparse file in memory, for a small change until its commit decides where to write it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

#include "core/journal/journal_format.h"
#include "core/storage/file.h"

namespace stfs {

/// Has no name, no descriptor and no locks, and ends with its process. Bytes that were never written read as
/// zeros. Not synchronized.
class StagingBuffer final : public File {
 public:
  /// The number of blocks that the file would hold after a write of that range.
  [[nodiscard]] std::size_t blocks_with(ByteRange range) const;

  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const override;
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset) override;
  /// Writes all blocks into another file, at the same offsets.
  Result<void> copy_to(File& file) const;

  Result<void> clone_from(const File& source, std::uint64_t source_offset, ByteRange range) override;
  Result<void> reserve(ByteRange) override { return {}; }
  Result<void> sync() override;
  [[nodiscard]] Result<FileStatus> status() const override;
  Result<std::optional<LockConflict>> try_lock(ByteRange range, LockKind kind) override;
  void unlock(ByteRange) override {}
  [[nodiscard]] std::optional<pid_t> lock_holder(ByteRange) const override { return std::nullopt; }
  [[nodiscard]] int descriptor() const override { return -1; }

 private:
  using Block = std::array<std::byte, kBlockBytes>;
  std::map<std::uint64_t, Block> blocks_;  // by their offset in bytes
};

}  // namespace stfs
