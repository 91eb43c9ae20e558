// The archive of a journal whose test needs no archive: it was deleted while it was open.
#pragma once

#include <cerrno>

#include "core/storage/file.h"

namespace stfs::test {

class GoneArchive final : public File {
 public:
  Result<void> read(std::span<std::byte>, std::uint64_t) const override { return gone(); }
  Result<void> write(std::span<const std::byte>, std::uint64_t) override { return gone(); }
  Result<void> clone_from(const File&, std::uint64_t, ByteRange) override { return gone(); }
  Result<void> reserve(ByteRange) override { return gone(); }
  Result<void> sync() override { return gone(); }
  [[nodiscard]] Result<FileStatus> status() const override { return gone(); }
  Result<std::optional<LockConflict>> try_lock(ByteRange, LockKind) override { return gone(); }
  void unlock(ByteRange) override {}
  [[nodiscard]] std::optional<pid_t> lock_holder(ByteRange) const override { return std::nullopt; }
  [[nodiscard]] int descriptor() const override { return -1; }

 private:
  static tl::unexpected<Error> gone() { return fail_system(ESTALE, "the archive of a test", "use"); }
};

inline const File& gone_archive() {
  static const GoneArchive archive;
  return archive;
}

}  // namespace stfs::test
