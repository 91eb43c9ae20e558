#include "tests/support/memory_storage.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/base/unique_fd.h"

namespace stfs::test {

struct MemoryStorage::Node {
  std::span<const std::byte> given;
  std::vector<std::byte> own;  // the content after the first write
  std::uint64_t writes = 0;
  std::uint64_t inode = 0;
  std::int64_t birth_ns = 0;
  std::uint64_t locked_tries = 0;
  std::uint32_t uid = ::geteuid();
  std::uint32_t gid = ::geteuid();
  std::uint32_t permissions = 0600;
  std::uint32_t links = 1;
  UniqueFd mapped;  // memory for mappings of the file
  bool has_given_bytes = false;

  [[nodiscard]] std::span<const std::byte> bytes() const { return writes == 0 ? given : own; }

  [[nodiscard]] FileStatus status() const {
    return {.identity = {.device = 1,
                         .inode = inode,
                         .size_bytes = bytes().size(),
                         .mtime_ns = birth_ns + static_cast<std::int64_t>(writes)},
            .birth_ns = birth_ns,
            .mode = S_IFREG | permissions,
            .uid = uid,
            .gid = gid,
            .links = links};
  }

  void write(std::span<const std::byte> from, std::uint64_t offset) {
    if (writes == 0) own.assign(given.begin(), given.end());
    if (own.size() < offset + from.size()) own.resize(offset + from.size());
    if (!from.empty()) std::memcpy(own.data() + offset, from.data(), from.size());
    ++writes;
  }

  void resize(std::uint64_t size_bytes) {
    if (writes == 0) own.assign(given.begin(), given.end());
    own.resize(size_bytes);
    ++writes;
  }

  int descriptor() {
    if (!mapped) mapped = UniqueFd(::memfd_create("memory storage", MFD_CLOEXEC));
    if (!has_given_bytes || writes != 0) {
      const std::span<const std::byte> now = bytes();
      const auto size = static_cast<off_t>(now.size());
      const bool is_copied =
          ::ftruncate(mapped.get(), size) == 0 && ::pwrite(mapped.get(), now.data(), now.size(), 0) == size;
      has_given_bytes = is_copied && writes == 0;
    }
    return mapped.get();
  }
};

namespace {

class NodeFile final : public File {
 public:
  NodeFile(std::shared_ptr<MemoryStorage::Node> node, Access access)
      : node_(std::move(node)), access_(access) {}

  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const override {
    if (offset > node_->bytes().size() || to.size() > node_->bytes().size() - offset) {
      return fail(ErrorCode::ArchiveCut, EIO, "the file ends early");
    }
    if (!to.empty()) std::memcpy(to.data(), node_->bytes().data() + offset, to.size());
    return {};
  }
  Result<void> write(std::span<const std::byte> from, std::uint64_t offset) override {
    if (access_ == Access::ReadOnly) return fail_system(EBADF, "a file in memory", "write");
    if (offset > MemoryStorage::kMostBytes || from.size() > MemoryStorage::kMostBytes - offset) {
      return fail_system(EFBIG, "a file in memory", "write");
    }
    node_->write(from, offset);
    return {};
  }
  Result<void> clone_from(const File&, std::uint64_t, ByteRange) override {
    return fail_system(EOPNOTSUPP, "a file in memory", "clone");
  }
  Result<void> reserve(ByteRange) override { return {}; }
  Result<void> resize(std::uint64_t size_bytes) override {
    if (access_ == Access::ReadOnly) return fail_system(EINVAL, "a file in memory", "resize");
    if (size_bytes > MemoryStorage::kMostBytes) return fail_system(EFBIG, "a file in memory", "resize");
    node_->resize(size_bytes);
    return {};
  }
  Result<void> sync() override { return {}; }
  [[nodiscard]] Result<FileStatus> status() const override { return node_->status(); }
  Result<std::optional<LockConflict>> try_lock(ByteRange, LockKind kind) override {
    if (kind == LockKind::Exclusive && access_ == Access::ReadOnly) {
      return fail_system(EBADF, "a file in memory", "lock");
    }
    if (node_->locked_tries == 0) return std::nullopt;
    --node_->locked_tries;
    return LockConflict{};
  }
  void unlock(ByteRange) override {}
  /// A query also uses up one of the failing attempts.
  [[nodiscard]] Result<bool> is_locked_by_other(ByteRange, LockKind) const override {
    if (node_->locked_tries == 0) return false;
    --node_->locked_tries;
    return true;
  }
  Result<void> set_owner(std::uint32_t uid, std::uint32_t gid) override {
    node_->uid = uid;
    node_->gid = gid;
    return {};
  }
  Result<void> set_mode(std::uint32_t permissions) override {
    node_->permissions = permissions;
    return {};
  }
  [[nodiscard]] std::optional<pid_t> lock_holder(ByteRange) const override { return std::nullopt; }
  [[nodiscard]] int descriptor() const override { return node_->descriptor(); }

  [[nodiscard]] const std::shared_ptr<MemoryStorage::Node>& node() const { return node_; }

 private:
  std::shared_ptr<MemoryStorage::Node> node_;
  const Access access_;
};

}  // namespace

MemoryStorage::MemoryStorage() = default;
MemoryStorage::~MemoryStorage() = default;

std::shared_ptr<MemoryStorage::Node> MemoryStorage::make_node() {
  auto node = std::make_shared<Node>();
  node->inode = ++last_inode_;
  node->birth_ns = 1'000'000'000;
  return node;
}

void MemoryStorage::put(const std::string& path, std::span<const std::byte> content) {
  std::shared_ptr<Node>& node = files_[path];
  if (!node) node = make_node();
  node->given = content;
  node->writes = 0;
  node->has_given_bytes = false;
}

void MemoryStorage::put_back(const std::string& path) {
  files_.at(path)->writes = 0;
}

void MemoryStorage::set_locked(const std::string& path, std::uint64_t tries) {
  files_.at(path)->locked_tries = tries;
}

void MemoryStorage::set_access(const std::string& path, std::uint32_t uid, std::uint32_t gid,
                               std::uint32_t permissions) {
  Node& node = *files_.at(path);
  node.uid = uid;
  node.gid = gid;
  node.permissions = permissions;
}

void MemoryStorage::set_links(const std::string& path, std::uint32_t links) {
  files_.at(path)->links = links;
}

std::span<const std::byte> MemoryStorage::content(const std::string& path) const {
  return files_.at(path)->bytes();
}

std::uint64_t MemoryStorage::writes(const std::string& path) const {
  return files_.at(path)->writes;
}

Result<std::unique_ptr<File>> MemoryStorage::open(const std::filesystem::path& path, Access access) {
  const auto found = files_.find(path.native());
  if (found == files_.end()) return fail_system(ENOENT, path.native(), "open");
  return std::make_unique<NodeFile>(found->second, access);
}

Result<std::unique_ptr<File>> MemoryStorage::create_unnamed(const std::filesystem::path&) {
  return std::make_unique<NodeFile>(make_node(), Access::ReadWrite);
}

Result<void> MemoryStorage::publish(File& file, const std::filesystem::path& path) {
  if (files_.contains(path.native())) return fail_system(EEXIST, path.native(), "link");
  files_.emplace(path.native(), dynamic_cast<NodeFile&>(file).node());
  return {};
}

Result<void> MemoryStorage::remove(const std::filesystem::path& path) {
  if (files_.erase(path.native()) == 0) return fail_system(ENOENT, path.native(), "remove");
  return {};
}

Result<void> MemoryStorage::sync_directory(const std::filesystem::path&) {
  return {};
}

Result<std::vector<std::string>> MemoryStorage::list(const std::filesystem::path& directory,
                                                     const std::string& prefix) {
  const std::string start = directory.native() + "/" + prefix;
  std::vector<std::string> found;
  for (auto file = files_.lower_bound(start); file != files_.end() && file->first.starts_with(start);
       ++file) {
    found.push_back(file->first.substr(directory.native().size() + 1));
  }
  return found;
}

Result<FileStatus> MemoryStorage::status(const std::filesystem::path& path) {
  const auto found = files_.find(path.native());
  if (found == files_.end()) return fail_system(ENOENT, path.native(), "stat");
  return found->second->status();
}

}  // namespace stfs::test
