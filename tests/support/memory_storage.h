// Files in memory without crashes, without a clock, and without locks of other processes unless a test sets
// them. The model of a disk (disk_model.h) is too slow for a million recoveries a minute. A mapping keeps the
// bytes that the file had when the mapping was made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/storage/file.h"

namespace stfs::test {

/// Used by one thread.
class MemoryStorage final : public Storage {
 public:
  /// The largest size of a file: a write past it is a mistake of the code under test.
  static constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20U;

  MemoryStorage();
  ~MemoryStorage() override;

  /// Adds a file, or replaces the content of the file at the path without counting that as a write. The bytes
  /// are not copied, so they must stay until the next put() or remove() of that path.
  void put(const std::string& path, std::span<const std::byte> content);
  /// Restores the content of the last put(). An existing copy for mappings is used again.
  void put_back(const std::string& path);
  /// Another process holds all locks on the file, until `tries` attempts to take one have failed.
  void set_locked(const std::string& path, std::uint64_t tries = UINT64_MAX);
  /// Sets the owner and the permissions, as if another user had made the file.
  void set_access(const std::string& path, std::uint32_t uid, std::uint32_t gid, std::uint32_t permissions);
  /// Sets the file's number of names.
  void set_links(const std::string& path, std::uint32_t links);

  [[nodiscard]] bool has(const std::string& path) const { return files_.contains(path); }
  [[nodiscard]] std::size_t files() const { return files_.size(); }
  /// Valid until the file is written.
  [[nodiscard]] std::span<const std::byte> content(const std::string& path) const;
  /// The number of writes since put().
  [[nodiscard]] std::uint64_t writes(const std::string& path) const;

  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, Access access) override;
  Result<std::unique_ptr<File>> open_no_link(const std::filesystem::path& path, Access access) override {
    return open(path, access);
  }
  Result<std::unique_ptr<File>> create_unnamed(const std::filesystem::path& fallback) override;
  Result<void> publish(File& file, const std::filesystem::path& path) override;
  Result<void> remove(const std::filesystem::path& path) override;
  Result<void> sync_directory(const std::filesystem::path& directory) override;
  Result<std::vector<std::string>> list(const std::filesystem::path& directory,
                                        const std::string& prefix) override;
  Result<FileStatus> status(const std::filesystem::path& path) override;
  [[nodiscard]] Boot boot() const override { return {.id = {1}, .host = 1}; }

  /// The content of a file; all open files of a path share it.
  struct Node;

 private:
  [[nodiscard]] std::shared_ptr<Node> make_node();

  std::map<std::string, std::shared_ptr<Node>, std::less<>> files_;
  std::uint64_t last_inode_ = 0;
};

}  // namespace stfs::test
