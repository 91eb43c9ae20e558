// An open file of the disk model.
#pragma once

#include <string>

#include "tests/support/disk_model.h"
#include "tests/support/lossy.h"

namespace stfs::test {

class DiskFile final : public File, public LossyFile {
 public:
  enum class Naming : std::uint8_t { Named, Unnamed, Fallback, WasNamed };

  DiskFile(DiskProcess& process, InodeNumber inode, Access access, Naming naming, std::string path,
           LockTable::Description description)
      : process_(process),
        model_(process.model_),
        inode_(inode),
        access_(access),
        naming_(naming),
        path_(std::move(path)),
        description_(description) {}
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;
  ~DiskFile() override;

  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const override;
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset) override;
  Result<void> clone_from(const File& source, std::uint64_t source_offset, ByteRange range) override;
  Result<void> reserve(ByteRange range) override;
  Result<void> resize(std::uint64_t size_bytes) override;
  Result<void> punch(ByteRange range) override;
  Result<void> sync() override;
  void fail_sync() override;
  [[nodiscard]] Result<FileStatus> status() const override;
  Result<std::optional<LockConflict>> try_lock(ByteRange range, LockKind kind) override;
  void unlock(ByteRange range) override;
  [[nodiscard]] Result<bool> is_locked_by_other(ByteRange range, LockKind kind) const override;
  [[nodiscard]] std::optional<pid_t> lock_holder(ByteRange range) const override;
  Result<void> set_owner(std::uint32_t uid, std::uint32_t gid) override;
  Result<void> set_mode(std::uint32_t permissions) override;
  [[nodiscard]] std::uint64_t most_range_bytes() const override { return model_.options_.most_range_bytes; }
  [[nodiscard]] bool has_staged_name() const override { return naming_ == Naming::Fallback; }
  [[nodiscard]] int descriptor() const override;

  [[nodiscard]] InodeNumber inode() const { return inode_; }
  /// Links the file as linkat, which works once; renames a file that has a fallback name. The model's mutex
  /// is held.
  Result<void> publish(const std::string& path);

 private:
  /// Fails if the process is dead, or if the file has lost its names and DiskOptions::removed_errno says so.
  [[nodiscard]] Result<void> alive(std::string_view action) const;
  [[nodiscard]] Result<void> may_write(std::string_view action) const;

  DiskProcess& process_;
  DiskModel& model_;
  const InodeNumber inode_;
  const Access access_;
  Naming naming_;
  const std::string path_;
  const LockTable::Description description_;
};

}  // namespace stfs::test
