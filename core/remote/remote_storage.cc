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
#include "core/remote/digest.h"
#include "core/remote/fetched_blocks.h"
#include "core/remote/hub.h"
#include "core/remote/remote_object.h"
#include "core/remote/s3.h"
#include "core/remote/tensor_plan.h"

namespace stfs {
namespace {

/// For a range of a file in git, the Hub may send the whole file. Git has files of at most 10 MB there.
constexpr std::uint64_t kMostWholeBytes = 32 << 20;
constexpr std::size_t kGitDigits = 40;

tl::unexpected<Error> read_only(std::string_view subject, std::string_view action) {
  return fail_system(EROFS, subject, action);
}

/// A version of an address that one or more files have open: its bytes come from the server, or are in a file
/// of the Hugging Face cache.
class Opened {
 public:
  /// @param is_listed  the version is the digest that the Hub lists.
  /// @param mode  a file that needs a token is for this user alone.
  Opened(std::string url, std::shared_ptr<FetchedBlocks> blocks, bool is_listed, mode_t mode)
      : url_(std::move(url)),
        blocks_(std::move(blocks)),
        version_(blocks_->object().version()),
        is_listed_(is_listed),
        mode_(mode) {}
  Opened(std::string url, std::unique_ptr<File> local, RemoteVersion version, mode_t mode)
      : url_(std::move(url)),
        local_(std::move(local)),
        version_(std::move(version)),
        is_listed_(true),
        mode_(mode) {}
  ~Opened() {
    if (blocks_) blocks_->end();
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  [[nodiscard]] const std::string& url() const { return url_; }
  [[nodiscard]] std::uint64_t size_bytes() const { return version_.size_bytes; }
  /// Returns File::version(). A short ETag is often made of the file's time and its size, so another file may
  /// have the same one.
  [[nodiscard]] std::string version() const {
    const std::string& etag = version_.etag;
    if (is_listed_) return fmt::format("{}:{}", etag.size() == kGitDigits ? "sha1" : "sha256", etag);
    constexpr std::size_t kLeastDigits = 32;
    const std::size_t digits = etag.find_first_not_of("0123456789abcdefABCDEF", 1);
    const bool is_of_bytes = digits != etag.npos && digits > kLeastDigits;
    return is_of_bytes ? fmt::format("{} {}", etag, url_) : std::string();
  }
  /// Null if the bytes come from the server.
  [[nodiscard]] const File* local() const { return local_.get(); }
  [[nodiscard]] FileStatus status() const {
    // Two versions of an address are two files.
    const std::string name = fmt::format("{}\n{}\n{}", url_, version_.etag, version_.last_modified);
    FileStatus status;
    status.identity.inode = XXH3_64bits(name.data(), name.size());
    status.identity.size_bytes = version_.size_bytes;
    status.mode = S_IFREG | (mode_ & (S_IRUSR | S_IRGRP | S_IROTH));
    status.uid = ::geteuid();
    status.gid = ::getegid();
    return status;
  }
  Result<void> read(std::span<std::byte> to, std::uint64_t offset) {
    if (offset > size_bytes() || to.size() > size_bytes() - offset)
      return fail(ErrorCode::ArchiveCut, EIO, fmt::format("{}: ends at byte {}", url_, size_bytes()));
    if (to.empty()) return {};
    if (local_) return local_->read(to, offset);
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
      if (plan_ || size_bytes() < kHeaderLengthBytes) return plan_.get();
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
  const std::shared_ptr<FetchedBlocks> blocks_;  // null if there is a local file
  const std::unique_ptr<File> local_;
  const RemoteVersion version_;
  const bool is_listed_;
  const mode_t mode_;
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
  [[nodiscard]] int descriptor() const override {
    return opened_->local() == nullptr ? -1 : opened_->local()->descriptor();
  }
  [[nodiscard]] std::string version() const override { return opened_->version(); }
  [[nodiscard]] std::uint64_t filesystem_type() const override {
    return opened_->local() == nullptr ? 0 : opened_->local()->filesystem_type();
  }
  [[nodiscard]] Result<std::uint64_t> known_size_bytes() const override {
    return opened_->local() == nullptr ? opened_->size_bytes() : opened_->local()->known_size_bytes();
  }

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
        auto made = open_version(path.native());
        RETURN_IF_ERROR(made);
        there = std::move(*made);
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
  void keep_model(std::shared_ptr<const HubModel> model) {
    const MutexLock lock(mutex_);
    models_[model->root] = std::move(model);
  }
  /// Returns the model of the Hub that has the address, if it is known.
  std::shared_ptr<const HubModel> model_of(std::string_view url) {
    const MutexLock lock(mutex_);
    const auto after = models_.upper_bound(url);
    if (after == models_.begin()) return nullptr;
    const auto& [root, model] = *std::prev(after);
    return url.starts_with(root) ? model : nullptr;
  }

 private:
  /// Asks the server which version it has, or finds the file in the Hugging Face cache.
  Result<std::shared_ptr<Opened>> open_version(const std::string& url) {
    RemoteAddress address{.url = url + query_of(url)};
    const auto s3_name = s3_name_of(url);
    RETURN_IF_ERROR(s3_name);
    if (*s3_name) {
      auto found = s3_address(**s3_name);
      if (!found) return tl::unexpected(std::move(found).error().within(url));
      address = std::move(*found);
    }
    std::size_t first_bytes = FetchedBlocks::kBlockBytes;
    if (const auto model = model_of(url)) {
      const std::string name = url.substr(model->root.size());
      const auto listed = model->files.find(name);
      if (listed == model->files.end()) return fail_system(ENOENT, url, "open");
      if (auto local = open_local(url, *model, listed->second)) return local;
      if (model->is_offline)
        return fail_system(ENETUNREACH, url, "open a file that the Hugging Face cache lacks");
      address = model->address_of(name);
      const auto& [digest, size_bytes] = listed->second;
      if (digest.size() == kGitDigits && size_bytes > 0 && size_bytes <= kMostWholeBytes)
        first_bytes = static_cast<std::size_t>(size_bytes);
    }
    const bool is_listed = address.listed.has_value();
    const bool is_private = address.is_private();
    const std::string digest = is_listed ? address.listed->digest : "";
    HttpConnection connection;
    std::vector<std::byte> first(first_bytes);
    auto object = RemoteObject::open(std::move(address), connection, first);
    if (!object) return tl::unexpected(std::move(object).error().within(url));
    const bool is_whole = first.size() == (*object)->version().size_bytes;
    if (is_listed && is_whole) {
      if (auto right = check_digest(first, digest); !right)
        return tl::unexpected(std::move(right).error().within(url));
    }
    auto blocks = FetchedBlocks::make(std::move(*object), first);
    if (!blocks) return tl::unexpected(std::move(blocks).error().within(url));
    return std::make_shared<Opened>(url, std::move(*blocks), is_listed, is_private ? 0400 : 0444);
  }
  /// Returns null if the cache does not have the file.
  static std::shared_ptr<Opened> open_local(const std::string& url, const HubModel& model,
                                            const HubModel::File& listed) {
    const auto found = find_in_hub_cache(model, listed);
    if (!found) return nullptr;
    auto file = system_storage().open(fmt::format("/proc/self/fd/{}", found->get()), Access::ReadOnly);
    if (!file) return nullptr;
    const auto status = (*file)->status();
    if (!status) return nullptr;
    return std::make_shared<Opened>(url, std::move(*file),
                                    RemoteVersion{listed.digest, {}, listed.size_bytes}, status->mode);
  }
  std::string query_of(const std::string& url) {
    const MutexLock lock(mutex_);
    const auto there = queries_.find(url);
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
  std::map<std::string, std::shared_ptr<const HubModel>, std::less<>> models_ GUARDED_BY(mutex_);  // by root
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
  return fail(
      ErrorCode::InvalidArgument, EINVAL,
      fmt::format("{}: {}:// is not read: name an address that begins with https://, http://, hf:// or s3://",
                  text, text.substr(0, end)));
}

Result<std::filesystem::path> known_address(const std::filesystem::path& url) {
  const std::string& text = url.native();
  if (the_storage().model_of(text)) return url;
  const auto hub_name = hub_name_of(text);
  RETURN_IF_ERROR(hub_name);
  if (*hub_name) {
    HttpConnection connection;
    auto model = find_hub_model(**hub_name, connection);
    RETURN_IF_ERROR(model);
    const auto file = choose_hub_file(**model, **hub_name);
    RETURN_IF_ERROR(file);
    the_storage().keep_model(*model);
    return (*model)->root + *file;
  }
  const auto s3_name = s3_name_of(text);
  RETURN_IF_ERROR(s3_name);
  if (*s3_name) return find_s3_file(**s3_name);
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

std::shared_ptr<HubCompanions> companions_at(const std::filesystem::path& directory) {
  const std::string address = directory.native() + "/";
  auto model = the_storage().model_of(address);
  if (!model) return nullptr;
  std::string folder = address.substr(model->root.size());
  return std::make_shared<HubCompanions>(std::move(model), std::move(folder));
}

}  // namespace stfs
