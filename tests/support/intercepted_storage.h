// A storage that asks an interceptor before each call. The interceptor lets the call pass, fails it, cuts it
// short, or skips it and reports success (Lie). Faults, such skips and schedules are interceptors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/storage/file.h"
#include "core/storage/group_members.h"

namespace stfs::test {

enum class FileCall : std::uint8_t {
  Open,
  CreateUnnamed,
  PathStatus,
  Publish,
  Remove,
  SyncDirectory,
  List,  // of the storage
  Read,
  Write,
  Clone,
  Reserve,
  Sync,
  Status,
  Lock,
  Unlock,
  TestLock,
  SetOwner,
  SetMode,
  Resize,
  Punch,  // of a file
  Create,
  Rename,
  MakeDirectory,
  RemoveDirectory  // of the storage
};
std::string_view name_of(FileCall kind);

/// The file or directory of a call.
enum class FileRole : std::uint8_t { Archive, Journal, Directory };
std::string_view name_of(FileRole role);

struct SeamCall {
  FileCall kind;
  FileRole role;
  std::uint64_t size_bytes = 0;  // of Write and Reserve
};

struct Verdict {
  enum class Kind : std::uint8_t { Pass, Fail, CutShort, Lie };
  Kind kind = Kind::Pass;
  int errno_value = 0;  // of a failure, and of a write that is cut short
};

/// Any thread may call.
class Interceptor {
 public:
  virtual ~Interceptor() = default;
  /// Unlock can't fail and can't be cut short.
  virtual Verdict before(const SeamCall& call) = 0;
};

/// The storage and the interceptor must outlive it and its files.
class InterceptedStorage : public Storage, public MemberStorage {
 public:
  InterceptedStorage(Storage& inner, Interceptor& interceptor) : inner_(inner), interceptor_(interceptor) {}

  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, Access access) override;
  Result<std::unique_ptr<File>> open_no_link(const std::filesystem::path& path, Access access) override;
  Result<std::unique_ptr<File>> open_again(const File& file, const std::filesystem::path& path,
                                           Access access) override;
  Result<std::unique_ptr<File>> create_unnamed(const std::filesystem::path& fallback) override;
  Result<void> publish(File& file, const std::filesystem::path& path) override;
  Result<void> remove(const std::filesystem::path& path) override;
  Result<void> check_replaceable(const std::filesystem::path& path) override {
    return inner_.check_replaceable(path);
  }
  Result<std::unique_ptr<File>> create(const std::filesystem::path& path, mode_t mode) override;
  Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to,
                      bool replaces) override;
  Result<void> copy_attributes(const std::filesystem::path& from, File& to) override;
  Result<void> copy_attributes(const File& from, File& to) override;
  Result<void> sync_directory(const std::filesystem::path& directory) override;
  Result<bool> make_directory(const std::filesystem::path& path) override;
  Result<void> remove_directory(const std::filesystem::path& path) override;
  Result<std::optional<UniqueFd>> try_flock(const std::filesystem::path& path, LockKind kind) override {
    return inner_.try_flock(path, kind);
  }
  Result<std::vector<std::string>> list(const std::filesystem::path& directory,
                                        const std::string& prefix) override;
  Result<FileStatus> status(const std::filesystem::path& path) override;
  Result<FileStatus> status_of_name(const std::filesystem::path& path) override;
  [[nodiscard]] Boot boot() const override { return inner_.boot(); }
  [[nodiscard]] std::uint32_t user() const override { return inner_.user(); }
  [[nodiscard]] Membership membership(std::uint32_t user, std::uint32_t group) const override {
    return membership_of(inner_, user, group);
  }

 private:
  Storage& inner_;
  Interceptor& interceptor_;
};

}  // namespace stfs::test
