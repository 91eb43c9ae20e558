#include "core/remote/remote_storage.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/absolute_path.h"
#include "core/base/mutex.h"
#include "core/remote/fetched_blocks.h"
#include "core/remote/hub.h"
#include "core/remote/hub_cache.h"
#include "core/remote/opened_file.h"
#include "core/remote/s3.h"

namespace stfs {
namespace {

tl::unexpected<Error> read_only(std::string_view subject, std::string_view action) {
  return fail_system(EROFS, subject, action);
}

class RemoteFile final : public File {
 public:
  explicit RemoteFile(std::shared_ptr<OpenedFile> opened) : opened_(std::move(opened)) {}

  Result<void> read(std::span<std::byte> to, std::uint64_t offset) const override {
    return opened_->read(to, offset);
  }
  Result<void> write(std::span<const std::byte>, std::uint64_t) override { return refuse("write"); }
  Result<void> clone_from(const File&, std::uint64_t, ByteRange) override { return refuse("clone"); }
  Result<void> reserve(ByteRange) override { return refuse("reserve space"); }
  Result<void> sync() override { return {}; }
  [[nodiscard]] Result<FileStatus> status() const override { return opened_->status(); }
  Result<std::optional<LockConflict>> try_lock(ByteRange, LockKind) override {
    return fail_system(ENOLCK, opened_->path(), "lock");
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
    return read_only(opened_->path(), action);
  }

  const std::shared_ptr<OpenedFile> opened_;
};

class RemoteStorage final : public Storage {
 public:
  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, Access access) override {
    if (access == Access::ReadWrite) return read_only(path.native(), "open for writing");
    return guard_memory([&]() -> Result<std::unique_ptr<File>> {
      auto there = opened(path);
      if (!there || there->query() != query_of(path)) {
        auto made = open_version(path.native());
        RETURN_IF_ERROR(made);
        // The query is no part of the path, so the path can name only one file at a time.
        if (there && ((*made)->version().empty() || (*made)->version() != there->version())) {
          keep_query(path.native(), there->query());
          return fail(ErrorCode::InvalidArgument, EINVAL,
                      fmt::format("{}: is open with another query, as another file", path.native()));
        }
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

  std::shared_ptr<OpenedFile> opened(const std::filesystem::path& path) {
    const MutexLock lock(mutex_);
    const auto there = opened_.find(path.native());
    return there == opened_.end() ? nullptr : there->second.lock();
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
  Result<std::shared_ptr<OpenedFile>> open_version(const std::string& url) {
    const std::string query = query_of(url);
    OpenedFile::Source source{.path = url, .shown = url, .address = {.url = url + query}, .query = query};
    const auto s3_name = s3_name_of(url);
    RETURN_IF_ERROR(s3_name);
    if (*s3_name) {
      auto found = s3_address(**s3_name);
      if (!found) return tl::unexpected(std::move(found).error().within(url));
      source.address = std::move(*found);
    }
    if (const auto model = model_of(url)) {
      const std::string name = url.substr(model->root.size());
      const auto listed = model->files.find(name);
      if (listed == model->files.end()) return fail_system(ENOENT, url, "open");
      if (auto local = open_local(url, *model, listed->second)) return local;
      source.address = model->address_of(name);
      source.shown = fmt::format("hf://{}@{}/{}", model->model, model->commit, name);
    }
    return OpenedFile::open(source);
  }
  /// Returns null if the cache does not have the file.
  static std::shared_ptr<OpenedFile> open_local(const std::string& url, const HubModel& model,
                                                const HubModel::File& listed) {
    const auto found = find_in_hub_cache(model, listed);
    if (!found) return nullptr;
    auto file = system_storage().open(fmt::format("/proc/self/fd/{}", found->get()), Access::ReadOnly);
    if (!file) return nullptr;
    const auto status = (*file)->status();
    if (!status) return nullptr;
    const mode_t mode = model.authorization.empty() ? status->mode : status->mode & S_IRUSR;
    return std::make_shared<OpenedFile>(
        url, std::move(*file), RemoteAddress::Listed{model.endpoint, listed.digest, listed.size_bytes}, mode);
  }
  std::string query_of(const std::string& url) {
    const MutexLock lock(mutex_);
    const auto there = queries_.find(url);
    return there == queries_.end() ? std::string() : there->second;
  }
  Mutex mutex_;
  // By address:
  std::map<std::string, std::weak_ptr<OpenedFile>> opened_ GUARDED_BY(mutex_);
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
  const std::string_view scheme = scheme_of(path);
  if (scheme.empty() || is_url(path)) return {};
  return fail(
      ErrorCode::InvalidArgument, EINVAL,
      fmt::format("{}: {}:// is not read: name an address that begins with https://, http://, hf:// or s3://",
                  path.native(), scheme));
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

Result<void> fetch_bytes(const std::filesystem::path& address, ByteRange range) {
  const auto there = the_storage().opened(address);
  if (!there || there->blocks() == nullptr || range.empty()) return {};
  if (auto done = there->blocks()->fetch(range); !done)
    return tl::unexpected(std::move(done).error().within(address.native()));
  return {};
}

FetchedBlocks::Missing missing_bytes(const std::filesystem::path& address, ByteRange range) {
  const auto there = the_storage().opened(address);
  return there && there->blocks() != nullptr ? there->blocks()->missing(range) : FetchedBlocks::Missing();
}

Result<void> pin_bytes(const std::filesystem::path& address, ByteRange range) {
  const auto there = the_storage().opened(address);
  if (!there || there->blocks() == nullptr) return {};
  if (there->blocks()->is_shared()) {
    if (there->blocks()->pin(range)) return {};
    return fail_system(ENOSPC, address.native(),
                       "keep all bytes: the disk or the limit has no room for them");
  }
  return fail(
      ErrorCode::InvalidArgument, EINVAL,
      fmt::format("{}: can't be kept: its server gives no strong ETag, or there is no directory for it",
                  address.native()));
}

Result<std::filesystem::path> named_address(const std::filesystem::path& url) {
  auto address = known_address(url);
  if (address && *address == url) the_storage().keep_query(address->native(), "");
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
