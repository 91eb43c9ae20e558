#include "core/remote/opened_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <map>
#include <utility>

#include "core/base/deadline.h"
#include "core/format/header.h"
#include "core/remote/block_file.h"
#include "core/remote/digest.h"
#include "core/remote/remote_notes.h"

namespace stfs {
namespace {

/// For a range of a file in git, the Hub may send the whole file. Git has files of at most 10 MB there.
constexpr std::uint64_t kMostWholeBytes = 32 << 20;
constexpr std::size_t kGitDigits = 40;

std::string listed_version(const std::string& digest) {
  return fmt::format("{}:{}", digest.size() == kGitDigits ? "sha1" : "sha256", digest);
}

/// Returns true if the ETag seems to be a digest of the file's bytes.
bool is_of_bytes(const std::string& etag) {
  constexpr std::size_t kLeastDigits = 32;
  const std::size_t digits = etag.find_first_not_of("0123456789abcdefABCDEF", 1);
  return digits != etag.npos && digits > kLeastDigits;
}

/// Returns true if the file had its last change some time ago. A short ETag is often made of the time in
/// seconds and the size, so two versions of one second have the same one.
bool is_settled(const std::string& last_modified) {
  constexpr std::time_t kSettledSeconds = 600;  // more than clocks differ
  std::tm parts{};
  const char* const end = ::strptime(last_modified.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return end != nullptr && ::timegm(&parts) + kSettledSeconds < std::time(nullptr);
}

/// Returns the scheme, the host and the port.
std::string origin_of(const std::string& url) {
  return url.substr(0, url.find('/', url.find("//") + 2));
}

/// Which servers could not be reached, for all files of this process. Each of the shards of a model would
/// wait for the same server.
class Unreachable {
 public:
  void note(const std::string& origin) {
    constexpr std::chrono::milliseconds kPause{10'000};
    const MutexLock lock(mutex_);
    until_[origin] = deadline_in(kPause);
  }
  bool is_noted(const std::string& origin) {
    const MutexLock lock(mutex_);
    const auto there = until_.find(origin);
    return there != until_.end() && time_left(there->second).count() > 0;
  }

 private:
  Mutex mutex_;
  std::map<std::string, Deadline> until_ GUARDED_BY(mutex_);  // by origin
};

Unreachable& unreachable() {
  static Unreachable servers;
  return servers;
}

}  // namespace

OpenedFile::OpenedFile(const Source& source, std::shared_ptr<FetchedBlocks> blocks, mode_t mode)
    : path_(source.path),
      query_(source.query),
      blocks_(std::move(blocks)),
      version_(blocks_->object().version()),
      is_listed_(source.address.listed.has_value()),
      mode_(mode) {}

OpenedFile::OpenedFile(std::string path, std::unique_ptr<File> local, RemoteAddress::Listed listed,
                       mode_t mode)
    : path_(std::move(path)),
      local_(std::move(local)),
      version_{std::move(listed.digest), {}, listed.size_bytes},
      is_listed_(true),
      mode_(mode) {}

OpenedFile::~OpenedFile() {
  if (blocks_) blocks_->end();
}

Result<std::shared_ptr<OpenedFile>> OpenedFile::open(const Source& source) {
  auto opened = source.address.listed ? open_listed(source) : open_unlisted(source);
  if (!opened) return tl::unexpected(std::move(opened).error().within(source.path));
  return opened;
}

Result<std::shared_ptr<OpenedFile>> OpenedFile::open_listed(const Source& source) {
  const auto& [hub, digest, size_bytes] = *source.address.listed;
  if (size_bytes > BlockFile::kMostBytes) {
    return fail(ErrorCode::InvalidArgument, EFBIG,
                fmt::format("the Hub lists it with {} bytes, at most {} are possible", size_bytes,
                            BlockFile::kMostBytes));
  }
  // This Hub says that the file has the digest. Another server may say it of other bytes.
  const std::string version = listed_version(digest);
  auto file = BlockFile::share({fmt::format("{} {}", hub, version), version, size_bytes, source.shown});
  const bool is_in_git = digest.size() == kGitDigits && size_bytes > 0 && size_bytes <= kMostWholeBytes;
  // The Hub may send a file in git only as a whole.
  if (file && (is_in_git ? file->has_all() : file->has_first())) {
    auto object = RemoteObject::known(source.address, {digest, {}, size_bytes});
    return make(source, std::move(object), std::move(file), {},
                !source.address.is_kept && !source.address.is_offline);
  }
  std::vector<std::byte> first(is_in_git ? size_bytes : BlockFile::kBlockBytes);
  HttpConnection connection;
  auto object = RemoteObject::open(source.address, connection, first);
  RETURN_IF_ERROR(object);
  if (first.size() == size_bytes) {
    RETURN_IF_ERROR(check_digest(first, digest));
  }
  return make(source, std::move(*object), std::move(file), first, true);
}

Result<std::shared_ptr<OpenedFile>> OpenedFile::open_unlisted(const Source& source) {
  const std::string& url = source.address.url;
  const std::string name = url.substr(0, url.find('?'));
  const std::string origin = origin_of(url);
  auto file = BlockFile::find(name);
  // With other queries, an address may give other files, which may have the same short ETag.
  const bool may_be_kept = file && file->has_first() && !source.has_query();
  if (may_be_kept && unreachable().is_noted(origin)) return open_kept(source, std::move(file));
  // One byte shows which version the server has.
  const bool is_large = file && file->size_bytes() > BlockFile::kBlockBytes;
  std::vector<std::byte> first(is_large ? 1 : BlockFile::kBlockBytes);
  HttpConnection connection;
  auto object = RemoteObject::open(source.address, connection, first);
  if (!object && object.error().errno_value == ENETUNREACH && may_be_kept) {
    unreachable().note(origin);
    return open_kept(source, std::move(file));
  }
  RETURN_IF_ERROR(object);
  const RemoteVersion& version = (*object)->version();
  const bool is_shared = is_of_bytes(version.etag) ||
                         (!version.etag.empty() && !source.has_query() && is_settled(version.last_modified));
  file = is_shared ? BlockFile::share({name, version.etag, version.size_bytes, source.shown}) : nullptr;
  return make(source, std::move(*object), std::move(file), first, true);
}

Result<std::shared_ptr<OpenedFile>> OpenedFile::open_kept(const Source& source,
                                                          std::unique_ptr<BlockFile> file) {
  add_remote_note(fmt::format("{} can't be reached: shows the versions that this machine keeps",
                              origin_of(source.address.url)));
  const BlockFile::Identity& kept = file->identity();
  auto object = RemoteObject::known(source.address, {kept.version, {}, kept.size_bytes});
  return make(source, std::move(object), std::move(file), {}, false);
}

Result<std::shared_ptr<OpenedFile>> OpenedFile::make(const Source& source,
                                                     std::unique_ptr<RemoteObject> object,
                                                     std::unique_ptr<BlockFile> file,
                                                     std::span<const std::byte> first, bool is_asked) {
  if (!file) {
    auto unnamed = BlockFile::make_unnamed(object->version().size_bytes);
    RETURN_IF_ERROR(unnamed);
    file = std::move(*unnamed);
  }
  // A query may be a signature.
  const bool is_private = source.address.is_private() || source.has_query();
  // A file that needed a token stays private while its server is not asked.
  if (is_private || is_asked) file->set_private(is_private);
  const mode_t mode = is_private || file->is_private() ? 0400 : 0444;
  auto blocks = FetchedBlocks::make(std::move(object), std::move(file), first);
  return std::shared_ptr<OpenedFile>(new OpenedFile(source, std::move(blocks), mode));
}

std::string OpenedFile::version() const {
  const std::string& etag = version_.etag;
  if (is_listed_) return listed_version(etag);
  return is_of_bytes(etag) ? fmt::format("{} {}", etag, path_) : std::string();
}

FileStatus OpenedFile::status() const {
  // Two versions of an address are two files.
  const std::string name = fmt::format("{}\n{}\n{}", path_, version_.etag, version_.last_modified);
  FileStatus status;
  status.identity.inode = XXH3_64bits(name.data(), name.size());
  status.identity.size_bytes = version_.size_bytes;
  status.mode = S_IFREG | (mode_ & (S_IRUSR | S_IRGRP | S_IROTH));
  status.uid = ::geteuid();
  status.gid = ::getegid();
  return status;
}

Result<void> OpenedFile::read(std::span<std::byte> to, std::uint64_t offset) {
  if (offset > size_bytes() || to.size() > size_bytes() - offset)
    return fail(ErrorCode::ArchiveCut, EIO, fmt::format("{}: ends at byte {}", path_, size_bytes()));
  if (to.empty()) return {};
  if (local_) return local_->read(to, offset);
  const ByteRange range{offset, to.size()};
  TensorPlan* const plan = plan_for(range);
  return blocks_->read(to, offset, plan == nullptr ? range : plan->around(range));
}

TensorPlan* OpenedFile::plan_for(ByteRange range) {
  {
    const MutexLock lock(mutex_);
    if (plan_ || is_planning_ || size_bytes() < kHeaderLengthBytes) return plan_.get();
    is_planning_ = true;
  }
  auto made = guard_memory([&]() -> Result<std::unique_ptr<TensorPlan>> { return make_plan(range); });
  const MutexLock lock(mutex_);
  is_planning_ = false;
  if (made) plan_ = std::move(*made);
  return plan_.get();
}

std::unique_ptr<TensorPlan> OpenedFile::make_plan(ByteRange range) {
  std::array<std::byte, kHeaderLengthBytes> first{};
  if (!blocks_->read(first, 0, {0, first.size()})) return nullptr;
  const auto length = header_length(first, size_bytes());
  if (!length || range.offset < kHeaderLengthBytes + *length) return nullptr;
  std::string json(static_cast<std::size_t>(*length), '\0');
  const auto bytes = std::as_writable_bytes(std::span(json));
  if (!blocks_->read(bytes, kHeaderLengthBytes, {kHeaderLengthBytes, json.size()})) return nullptr;
  return std::make_unique<TensorPlan>(json, size_bytes());
}

}  // namespace stfs
