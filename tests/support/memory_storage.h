// Files in memory, and nothing else: no crash, nobody else's locks but those that a test asks for, no clock.
// A million recoveries a minute leave no time for the model of a disk (disk_model.h). A mapping keeps the
// bytes that the file had when it was made.
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
  /// Files are no larger: who writes behind this does so by mistake.
  static constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20U;

  MemoryStorage();
  ~MemoryStorage() override;

  /// Puts a file there, or gives the one that is there other bytes, as if they had always been its own. They
  /// are not copied, so they must stay until the next put() or remove() of that path.
  void put(const std::string& path, std::span<const std::byte> content);
  /// What was put there last is there again. A file that was mapped once need not be copied for it once more.
  void put_back(const std::string& path);
  /// Somebody else holds every lock on it, until so many have tried to take one.
  void set_locked(const std::string& path, std::uint64_t tries = UINT64_MAX);
  /// As if somebody else had made it.
  void set_access(const std::string& path, std::uint32_t uid, std::uint32_t gid, std::uint32_t permissions);
  /// So many names the file has.
  void set_links(const std::string& path, std::uint32_t links);

  [[nodiscard]] bool has(const std::string& path) const { return files_.contains(path); }
  [[nodiscard]] std::size_t files() const { return files_.size(); }
  /// Valid until it is written.
  [[nodiscard]] std::span<const std::byte> content(const std::string& path) const;
  /// Times that it was written since it was put there.
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

  /// What is in a file, whoever has it open.
  struct Node;

 private:
  [[nodiscard]] std::shared_ptr<Node> make_node();

  std::map<std::string, std::shared_ptr<Node>, std::less<>> files_;
  std::uint64_t last_inode_ = 0;
};

}  // namespace stfs::test
