#include "core/remote/remote_storage.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/base/absolute_path.h"
#include "core/base/mutex.h"
#include "core/format/header.h"
#include "core/remote/fetched_blocks.h"
#include "core/remote/remote_object.h"
#include "core/remote/tensor_plan.h"

namespace stfs {
namespace {

tl::unexpected<Error> read_only(std::string_view subject, std::string_view action) {
  return fail_system(EROFS, subject, action);
}

/// A version of an address that one or more files have open.
class Opened {
 public:
  Opened(std::string url, std::shared_ptr<FetchedBlocks> blocks)
      : url_(std::move(url)), blocks_(std::move(blocks)) {}
  ~Opened() { blocks_->end(); }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  [[nodiscard]] const std::string& url() const { return url_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return blocks_->object().version().size_bytes; }
  [[nodiscard]] FileStatus status() const {
    // Two versions of an address are two files.
    const RemoteVersion& version = blocks_->object().version();
    const std::string name = fmt::format("{}\n{}\n{}", url_, version.etag, version.last_modified);
    FileStatus status;
    status.identity.inode = XXH3_64bits(name.data(), name.size());
    status.identity.size_bytes = version.size_bytes;
    status.mode = S_IFREG | S_IRUSR | S_IRGRP | S_IROTH;
    status.uid = ::geteuid();
    status.gid = ::getegid();
    return status;
  }
  Result<void> read(std::span<std::byte> to, std::uint64_t offset) {
    if (offset > size_bytes() || to.size() > size_bytes() - offset)
      return fail(ErrorCode::ArchiveCut, EIO, fmt::format("{}: ends at byte {}", url_, size_bytes()));
    if (to.empty()) return {};
    const ByteRange range{offset, to.size()};
    TensorPlan* const plan = plan_for(range);
    return blocks_->read(to, offset, plan == nullptr ? range : plan->around(range));
  }

 private:
  /// Makes the plan when data are read for the first time. The header is read without a plan, and without the
  /// lock: that may wait for the server.
  TensorPlan* plan_for(ByteRange range) {
    {
      const MutexLock lock(mutex_);
      if (plan_ || size_bytes() < kHeaderLengthBytes || range.offset < kHeaderLengthBytes) return plan_.get();
    }
    std::array<std::byte, kHeaderLengthBytes> first{};
    if (!blocks_->read(first, 0, {0, first.size()})) return nullptr;
    const auto length = header_length(first, size_bytes());
    if (!length || range.offset < kHeaderLengthBytes + *length) return nullptr;
    std::string json(static_cast<std::size_t>(*length), '\0');
    const auto bytes = std::as_writable_bytes(std::span(json));
    if (!blocks_->read(bytes, kHeaderLengthBytes, {kHeaderLengthBytes, json.size()})) return nullptr;
    auto made = std::make_unique<TensorPlan>(json, size_bytes());
    const MutexLock lock(mutex_);
    if (!plan_) plan_ = std::move(made);
    return plan_.get();
  }

  const std::string url_;
  const std::shared_ptr<FetchedBlocks> blocks_;
  Mutex mutex_;
  std::unique_ptr<TensorPlan> plan_ GUARDED_BY(mutex_);
};

class RemoteFile final : public File {
 public:
  explicit RemoteFile(std::shared_ptr<Opened> opened) : opened_(std::move(opened)) {}

  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const override {
    return opened_->read(to, offset);
  }
  Result<void> write(std::span<const std::byte>, std::uint64_t) override { return refuse("write"); }
  Result<void> clone_from(const File&, std::uint64_t, ByteRange) override { return refuse("clone"); }
  Result<void> reserve(ByteRange) override { return refuse("reserve space"); }
  Result<void> sync() override { return {}; }
  [[nodiscard]] Result<FileStatus> status() const override { return opened_->status(); }
  Result<std::optional<LockConflict>> try_lock(ByteRange, LockKind) override {
    return fail_system(ENOLCK, opened_->url(), "lock");
  }
  void unlock(ByteRange) override {}
  [[nodiscard]] Result<bool> is_locked_by_other(ByteRange, LockKind) const override { return false; }
  [[nodiscard]] std::optional<pid_t> lock_holder(ByteRange) const override { return std::nullopt; }
  [[nodiscard]] int descriptor() const override { return -1; }

 private:
  [[nodiscard]] tl::unexpected<Error> refuse(std::string_view action) const {
    return read_only(opened_->url(), action);
  }

  const std::shared_ptr<Opened> opened_;
};

class RemoteStorage final : public Storage {
 public:
  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, Access access) override {
    if (access == Access::ReadWrite) return read_only(path.native(), "open for writing");
    return guard_memory([&]() -> Result<std::unique_ptr<File>> {
      auto there = opened(path);
      if (!there) {
        HttpConnection connection;
        std::vector<std::byte> first(FetchedBlocks::kBlockBytes);
        auto object = RemoteObject::open(path.native() + query_of(path), connection, first);
        if (!object) return tl::unexpected(std::move(object).error().within(path.native()));
        auto blocks = FetchedBlocks::make(std::move(*object), first);
        if (!blocks) return tl::unexpected(std::move(blocks).error().within(path.native()));
        there = std::make_shared<Opened>(path.native(), std::move(*blocks));
        const MutexLock lock(mutex_);
        opened_[path.native()] = there;
      }
      return std::make_unique<RemoteFile>(std::move(there));
    });
  }
  Result<std::unique_ptr<File>> open_no_link(const std::filesystem::path& path, Access access) override {
    return open(path, access);
  }
  Result<std::unique_ptr<File>> open_again(const File&, const std::filesystem::path& path,
                                           Access access) override {
    return open(path, access);
  }
  Result<std::unique_ptr<File>> create_unnamed(const std::filesystem::path& path) override {
    return read_only(path.native(), "make a file");
  }
  Result<void> check_writable(const std::filesystem::path& path) override {
    return read_only(path.native(), "write");
  }
  Result<void> check_replaceable(const std::filesystem::path& path) override {
    return read_only(path.native(), "replace");
  }
  Result<void> publish(File&, const std::filesystem::path& path) override {
    return read_only(path.native(), "make a file");
  }
  Result<void> remove(const std::filesystem::path& path) override {
    return read_only(path.native(), "remove");
  }
  Result<void> sync_directory(const std::filesystem::path&) override { return {}; }
  Result<std::vector<std::string>> list(const std::filesystem::path&, const std::string&) override {
    return std::vector<std::string>();
  }
  Result<FileStatus> status(const std::filesystem::path& path) override {
    if (const auto there = opened(path)) return there->status();
    return fail_system(ENOENT, path.native(), "stat");
  }

  void keep_query(const std::string& url, std::string query) {
    const MutexLock lock(mutex_);
    queries_[url] = std::move(query);
  }

 private:
  std::string query_of(const std::filesystem::path& path) {
    const MutexLock lock(mutex_);
    const auto there = queries_.find(path.native());
    return there == queries_.end() ? std::string() : there->second;
  }
  std::shared_ptr<Opened> opened(const std::filesystem::path& path) {
    const MutexLock lock(mutex_);
    const auto there = opened_.find(path.native());
    return there == opened_.end() ? nullptr : there->second.lock();
  }

  Mutex mutex_;
  // By address:
  std::map<std::string, std::weak_ptr<Opened>> opened_ GUARDED_BY(mutex_);
  std::map<std::string, std::string> queries_ GUARDED_BY(mutex_);
};

RemoteStorage& the_storage() {
  static RemoteStorage storage;
  return storage;
}

}  // namespace

Storage& remote_storage() {
  return the_storage();
}

Result<void> check_scheme(const std::filesystem::path& path) {
  const std::string& text = path.native();
  const std::size_t end = text.find("://");
  const bool has_scheme = end != text.npos && end > 0 && text.find('/') > end && text.front() != '.';
  if (!has_scheme || is_url(path)) return {};
  return fail(ErrorCode::InvalidArgument, EINVAL,
              fmt::format("{}: {}:// is not read: name an address that begins with https:// or http://", text,
                          text.substr(0, end)));
}

Result<std::filesystem::path> known_address(const std::filesystem::path& url) {
  const std::string& text = url.native();
  const std::size_t host = text.find("//") + 2;
  const std::size_t host_end = std::min(text.find_first_of("/?#", host), text.size());
  const std::size_t at = text.substr(0, host_end).rfind('@');
  // Other users can see the command line of a program.
  if (at != text.npos && at >= host) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}{}: an address with a password is refused", text.substr(0, host),
                            text.substr(at + 1)));
  }
  const std::size_t query = std::min(text.find_first_of("?#"), text.size());
  const std::string address = text.substr(0, query);
  if (query != text.size()) the_storage().keep_query(address, text.substr(query));
  return address;
}

}  // namespace stfs
