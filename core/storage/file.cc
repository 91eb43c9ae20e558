#include "core/storage/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/absolute_path.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/base/xxh3.h"
#include "core/storage/file_attributes.h"
#include "core/storage/foreign_mount.h"
#include "core/storage/new_file.h"
#include "core/storage/open_directory.h"
#include "core/storage/system_file.h"
#include "core/storage/trusted_links.h"

namespace stfs {
namespace {

Result<void> refuse_what_is_no_file(const std::string& name, std::uint32_t mode) {
  if (S_ISREG(mode)) return {};
  if (S_ISDIR(mode)) return fail(ErrorCode::System, EISDIR, name + ": is a directory, not an archive");
  return fail(ErrorCode::System, EINVAL, name + ": is not a regular file");
}

/// Another user may have planted the name. A link, or a second name, would lead to a private file: a lock on
/// that file would stop its owner. Some devices act when they are opened.
Result<void> check_lockable(const struct stat& status, const std::string& name) {
  const auto refuse = [&](int why, std::string_view what) {
    return fail(
        ErrorCode::InvalidArgument, why,
        fmt::format("{}: {}: it is not locked: expected a file of one name, or a directory: remove it", name,
                    what));
  };
  if (S_ISLNK(status.st_mode)) return refuse(ELOOP, "is a symbolic link");
  if (S_ISDIR(status.st_mode)) return {};
  if (!S_ISREG(status.st_mode)) return refuse(EINVAL, "is not a regular file");
  if (status.st_nlink > 1) return refuse(EMLINK, "has several names (hard links)");
  return {};
}

/// Returns zeros if the kernel does not report a boot.
Boot this_boot() {
  Boot boot;
  std::string text;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> text;
  std::erase(text, '-');
  for (std::size_t at = 0; text.size() == 2 * boot.id.size() && at < boot.id.size(); ++at) {
    std::from_chars(text.data() + 2 * at, text.data() + 2 * at + 2, boot.id[at], 16);
  }
  std::string machine;
  if (std::ifstream("/etc/machine-id") >> machine) boot.host = XXH3_64bits(machine.data(), machine.size());
  return boot;
}

tl::unexpected<Error> replaced(const std::filesystem::path& path) {
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              path.string() + ": the archive was replaced or deleted while it was open");
}

class SystemStorage final : public Storage {
 public:
  SystemStorage() = default;
  SystemStorage(std::filesystem::path folder, OpenDirectory directory)
      : folder_(std::move(folder)), directory_(std::make_shared<OpenDirectory>(std::move(directory))) {}

  bool is_system() const override { return true; }

  std::filesystem::path reached(const std::filesystem::path& path) const override { return at(path).c_str(); }

  Result<std::unique_ptr<File>> open(const std::filesystem::path& path, Access access) override {
    const auto found = told(follow_all_links(reached(path)));
    if (found && ::access("/proc/self/fd", F_OK) != 0) {
      UniqueFd fd(::open(path.c_str(), flags_of(access)));  // a container without /proc
      return fd ? made_of(std::move(fd), path.string())
                : explain(fail_system(errno, path.string(), "open").value(), path, path.string());
    }
    return open_followed(found, access, path.string());
  }

  Result<std::unique_ptr<File>> open_no_link(const std::filesystem::path& path, Access access) override {
    RETURN_IF_ERROR(check_local(path));
    const std::filesystem::path at = reached(path);
    auto opened = told(open_entry(at, flags_of(access)));
    if (!opened) return explain(std::move(opened).error(), at, path.string());
    return made_of(std::move(*opened), path.string());
  }

  Result<std::unique_ptr<File>> open_behind(const std::filesystem::path& path, Links links) override {
    if (links == Links::All) return open(path, Access::ReadOnly);
    return open_followed(told(follow_trusted_links(AT_FDCWD, reached(path))), Access::ReadOnly,
                         path.string());
  }

  Result<std::unique_ptr<File>> open_again(const File& file, const std::filesystem::path& path,
                                           Access access) override {
    // The magic link leads to this open file, even if the path names another file now. On overlayfs it leads
    // to the copy if the file was copied up.
    auto opened = open_descriptor(file.descriptor(), access, path.string());
    if (opened) return opened;
    auto ours = file.status();
    auto there = status(path);
    const bool is_gone = !there && there.error().errno_value == ENOENT;
    if (is_gone || (ours && there && !there->identity.same_file(ours->identity))) return replaced(path);
    return opened;
  }

  Result<void> check_writable(const std::filesystem::path& path) override {
    const auto found = told(follow_all_links(reached(path)));
    RETURN_IF_ERROR(found);
    if (::faccessat(AT_FDCWD, link_to(found->fd.get()).c_str(), W_OK, AT_EACCESS) == 0) return {};
    return fail_system(errno, path.string(), "open for writing");
  }

  Result<std::unique_ptr<File>> create_unnamed(const std::filesystem::path& fallback) override {
    RETURN_IF_ERROR(check_local(fallback));
    constexpr mode_t kOwnerOnly = 0600;
    const std::filesystem::path directory = fallback.parent_path();
    if (UniqueFd fd(::open(at(directory).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kOwnerOnly)); fd) {
      return make_system_file(std::move(fd), directory.string() + ": staged bytes");
    }
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) {
      return fail_system(errno, directory.string(), "create a file in the archive's directory");
    }
    std::filesystem::path at = reached(fallback);
    UniqueFd fd(::open(at.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, kOwnerOnly));
    if (!fd) return fail_system(errno, fallback.string(), "create");
    return make_system_file(std::move(fd), fallback.string(), std::move(at), directory_);
  }

  Result<void> publish(File& file, const std::filesystem::path& path) override {
    return told(publish_system_file(file, reached(path)));
  }

  Result<void> remove(const std::filesystem::path& path) override {
    RETURN_IF_ERROR(check_local(path));
    if (::unlink(at(path).c_str()) < 0) return fail_system(errno, path.string(), "remove");
    return {};
  }

  Result<void> check_replaceable(const std::filesystem::path& path) override {
    RETURN_IF_ERROR(check_local(path));
    const std::filesystem::path directory = path.parent_path();
    if (::faccessat(AT_FDCWD, at(directory).c_str(), W_OK | X_OK, AT_EACCESS) == 0) return {};
    return fail_system(errno, directory.string(), "make a file in it");
  }

  Result<std::unique_ptr<File>> create(const std::filesystem::path& path, mode_t mode) override {
    RETURN_IF_ERROR(check_local(path));
    UniqueFd fd(::open(at(path).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
    if (!fd) return fail_system(errno, path.string(), "create");
    return make_system_file(std::move(fd), path.string());
  }

  Result<void> rename(const std::filesystem::path& from_path, const std::filesystem::path& to_path,
                      bool replaces) override {
    const PathOfCall from = at(from_path);
    const PathOfCall to = at(to_path);
    if (replaces) {
      if (::rename(from.c_str(), to.c_str()) != 0) return fail_system(errno, to_path.string(), "rename");
      return {};
    }
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return {};
    // Some network file systems do not know the flag. link(2) refuses an existing name on all of them.
    const bool knows_flag = errno != EINVAL && errno != ENOSYS;
    if (knows_flag || ::link(from.c_str(), to.c_str()) != 0)
      return fail_system(errno, to_path.string(), "rename");
    ::unlink(from.c_str());
    return {};
  }

  Result<void> copy_attributes(const std::filesystem::path& from, File& to) override {
    return told(copy_file_attributes(reached(from), to.descriptor()));
  }

  Result<void> copy_attributes(const File& from, File& to) override {
    return copy_file_attributes(from.descriptor(), to.descriptor());
  }

  Result<void> sync_directory(const std::filesystem::path& directory) override {
    const UniqueFd fd(::open(at(directory).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return fail_system(errno, directory.string(), "open");
    if (::fsync(fd.get()) < 0) return fail_system(errno, directory.string(), "sync");
    return {};
  }

  Result<bool> make_directory(const std::filesystem::path& path) override {
    RETURN_IF_ERROR(check_local(path));
    constexpr mode_t kForAll = 0777;  // before the umask
    if (::mkdir(at(path).c_str(), kForAll) == 0) return true;
    const int why = errno;
    if (why == EEXIST) {
      if (const auto there = status(path); there && S_ISDIR(there->mode)) return false;
    }
    return fail_system(why, path.string(), "make the directory");
  }

  Result<void> remove_directory(const std::filesystem::path& path) override {
    RETURN_IF_ERROR(check_local(path));
    if (::rmdir(at(path).c_str()) < 0) return fail_system(errno, path.string(), "remove the directory");
    return {};
  }

  Result<std::optional<UniqueFd>> try_flock(const std::filesystem::path& path, LockKind kind) override {
    RETURN_IF_ERROR(check_local(path));
    auto entry = open_entry(path, O_PATH);
    RETURN_IF_ERROR(entry);
    FollowedFile found{.fd = std::move(*entry)};
    if (::fstat(found.fd.get(), &found.status) != 0) return fail_system(errno, path.string(), "stat");
    RETURN_IF_ERROR(check_lockable(found.status, path.string()));
    // NFS locks exclusively only what is open for writing. O_NONBLOCK: another user's lease does not make the
    // open wait.
    constexpr int kFlags = O_NONBLOCK | O_NOCTTY;
    UniqueFd fd;
    if (kind == LockKind::Exclusive) fd = found.open(O_RDWR | kFlags);
    if (!fd) fd = found.open(O_RDONLY | kFlags);
    if (!fd) return fail_system(errno, path.string(), "open");
    const int wanted = (kind == LockKind::Shared ? LOCK_SH : LOCK_EX) | LOCK_NB;
    while (::flock(fd.get(), wanted) < 0) {
      if (errno == EWOULDBLOCK) return std::optional<UniqueFd>();
      if (errno != EINTR) return fail_system(errno, path.string(), "lock");
    }
    return std::optional(std::move(fd));
  }

  Result<std::vector<std::string>> list(const std::filesystem::path& directory,
                                        const std::string& prefix) override {
    RETURN_IF_ERROR(check_local(directory));
    const auto followed = follow_to_directory(reached(directory));
    if (!followed && followed.error().errno_value == EXDEV) return tl::unexpected(followed.error());
    if (!followed) return fail_system(followed.error().errno_value, directory.string(), "list");
    UniqueFd own(::openat(followed->get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const std::unique_ptr<DIR, int (*)(DIR*)> entries(own ? ::fdopendir(own.get()) : nullptr, &::closedir);
    if (!entries) return fail_system(errno, directory.string(), "list");
    static_cast<void>(own.release());
    std::vector<std::string> names;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(entries.get());
      if (entry == nullptr) break;
      if (std::string_view(entry->d_name).starts_with(prefix)) names.emplace_back(entry->d_name);
    }
    if (errno != 0) return fail_system(errno, directory.string(), "list");
    return names;
  }

  Result<FileStatus> status(const std::filesystem::path& path) override {
    RETURN_IF_ERROR(check_local(path));
    return told(system_status(reached(path), path.string()));
  }

  Result<FileStatus> status_of_name(const std::filesystem::path& path) override {
    RETURN_IF_ERROR(check_local(path));
    return told(system_status_of_name(reached(path)));
  }

  Boot boot() const override {
    static const Boot now = this_boot();
    return now;
  }

 private:
  /// Replaces the path of the open directory in an error's message by the path for people.
  template <class T>
  Result<T> told(Result<T> done) const {
    if (done || !directory_) return done;
    return tl::unexpected(directory_->with_shown_paths(std::move(done).error(), folder_));
  }

  /// A path for a system call. It allocates nothing, because cleanups remove files after a failed allocation.
  class PathOfCall {
   public:
    PathOfCall(std::string_view folder, std::string_view reached, const std::string& path) {
      std::string_view rest = path;
      const bool is_inside =
          !folder.empty() && rest.starts_with(folder) &&
          (rest.size() == folder.size() || folder.ends_with('/') || rest[folder.size()] == '/');
      if (!is_inside) {
        text_ = path.c_str();
        return;
      }
      rest.remove_prefix(folder.size());
      while (rest.starts_with('/')) rest.remove_prefix(1);
      char* end = buffer_.data();
      // The kernel refuses a path that is cut: it has no end within PATH_MAX bytes.
      const auto add = [&](std::string_view part) {
        const auto room = static_cast<std::size_t>(buffer_.data() + buffer_.size() - 1 - end);
        end = std::copy_n(part.begin(), std::min(part.size(), room), end);
      };
      add(reached);
      if (!rest.empty()) add("/");
      add(rest);
      *end = '\0';
    }
    [[nodiscard]] const char* c_str() const { return text_ != nullptr ? text_ : buffer_.data(); }

   private:
    const char* text_ = nullptr;
    std::array<char, PATH_MAX + 1> buffer_;
  };
  [[nodiscard]] PathOfCall at(const std::filesystem::path& path) const {
    return directory_ ? PathOfCall(folder_.native(), directory_->path.native(), path.native())
                      : PathOfCall({}, {}, path.native());
  }

  static int flags_of(Access access) {
    // O_NONBLOCK: a named pipe without a writer must be refused below instead of blocking.
    return (access == Access::ReadOnly ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NONBLOCK;
  }

  /// The magic link leads to this open file, even if the file's name leads elsewhere now.
  static std::filesystem::path link_to(int descriptor) {
    return std::filesystem::path("/proc/self/fd") / std::to_string(descriptor);
  }

  static Result<std::unique_ptr<File>> open_descriptor(int descriptor, Access access,
                                                       const std::string& name) {
    const std::filesystem::path link = link_to(descriptor);
    UniqueFd fd(::open(link.c_str(), flags_of(access)));
    if (!fd) return explain(fail_system(errno, name, "open").value(), link, name);
    return made_of(std::move(fd), name);
  }

  static Result<std::unique_ptr<File>> open_followed(const Result<FollowedFile>& found, Access access,
                                                     const std::string& name) {
    RETURN_IF_ERROR(found);
    return open_descriptor(found->fd.get(), access, name);
  }

  /// Explains why a file could not be opened.
  static tl::unexpected<Error> explain(Error why, const std::filesystem::path& path,
                                       const std::string& name) {
    const int number = why.errno_value;
    // open(2) reports EISDIR only for writing.
    const auto there = number == ELOOP ? tl::unexpected(why) : system_status(path, name);
    if (!there) return tl::unexpected(std::move(why));
    RETURN_IF_ERROR(refuse_what_is_no_file(name, there->mode));
    // Only the owner of a file, or root, can take a lease on it. The kernel ends the lease within
    // /proc/sys/fs/lease-break-time seconds after this attempt.
    if (number != EAGAIN) return tl::unexpected(std::move(why));
    return fail(ErrorCode::System, EAGAIN,
                name + ": can't be opened now: user " + std::to_string(there->uid) +
                    " or root holds a lease on it (fcntl F_SETLEASE)");
  }

  static Result<std::unique_ptr<File>> made_of(UniqueFd fd, const std::string& name) {
    auto file = make_system_file(std::move(fd), name);
    auto status = file->status();
    RETURN_IF_ERROR(status);
    RETURN_IF_ERROR(refuse_what_is_no_file(name, status->mode));
    return file;
  }

  const std::filesystem::path folder_;
  const std::shared_ptr<const OpenDirectory> directory_;  // null: paths are as they are
};

}  // namespace

Result<void> File::copy_from(const File& source, std::uint64_t source_offset, ByteRange range) {
  return for_each_piece(source, {source_offset, range.size_bytes},
                        [&](std::span<const std::byte> piece, std::uint64_t at) {
                          return write(piece, range.offset + (at - source_offset));
                        });
}

Result<void> File::refresh(std::span<const ByteRange> ranges) {
  if (!is_served()) return {};
  // A client of GlusterFS answers from its caches for seconds, even after a lock and after another open().
  // The reply to a sync contains the file's current attributes. NFS and SMB revalidate when a lock is taken.
  RETURN_IF_ERROR(sync());
  for (const ByteRange range : ranges) forget(range);
  return {};
}

void File::forget(ByteRange range) const {
  if (!is_served()) return;
  // A new mtime makes the kernel drop its cached pages of the file. If two writes fall into one tick of the
  // server's clock, the second leaves the mtime unchanged: a host that has read between them keeps the older
  // pages, whatever it opens, locks or syncs (9 of 10 rounds with two clients of GlusterFS 10.3). An eviction
  // keeps the pages that are only partly in its range, so the range is rounded out.
  constexpr std::uint64_t kLargestPageBytes = 64 << 10;
  const std::uint64_t offset = range.offset / kLargestPageBytes * kLargestPageBytes;
  evict({offset, range.end() - offset + kLargestPageBytes});
}

Result<bool> File::is_locked_by_other(ByteRange, LockKind) const {
  return fail_system(ENOLCK, "a file without locks", "look for a lock");
}

Result<void> File::resize(std::uint64_t) {
  return fail_system(EINVAL, "a file of a fixed size", "resize");
}

Result<void> File::punch(ByteRange) {
  return {};
}

Result<void> File::set_owner(std::uint32_t, std::uint32_t) {
  return fail_system(EPERM, "a file without an owner", "give to another owner");
}

Result<void> File::set_mode(std::uint32_t) {
  return fail_system(EPERM, "a file without a mode", "set the mode");
}

Result<std::unique_ptr<File>> Storage::create(const std::filesystem::path& path, mode_t) {
  return fail_system(EOPNOTSUPP, path.string(), "create");
}

Result<void> Storage::rename(const std::filesystem::path&, const std::filesystem::path& to, bool) {
  return fail_system(EOPNOTSUPP, to.string(), "rename");
}

Result<void> Storage::copy_attributes(const std::filesystem::path& from, File&) {
  return fail_system(EOPNOTSUPP, from.string(), "copy the attributes");
}

Result<void> Storage::copy_attributes(const File&, File&) {
  return fail_system(EOPNOTSUPP, "a file", "copy the attributes");
}

Result<bool> Storage::make_directory(const std::filesystem::path& path) {
  return fail_system(EOPNOTSUPP, path.string(), "make the directory");
}

Result<void> Storage::remove_directory(const std::filesystem::path& path) {
  return fail_system(EOPNOTSUPP, path.string(), "remove the directory");
}

Result<std::optional<UniqueFd>> Storage::try_flock(const std::filesystem::path& path, LockKind) {
  return fail_system(EOPNOTSUPP, path.string(), "lock");
}

Result<void> Storage::replace(const std::filesystem::path& path, const std::filesystem::path& temporary,
                              std::span<const std::byte> content, Durability durability) {
  // No other user needs to write the file in place: the next version is a new file that takes the name.
  auto file = NewFile::create_as(temporary, path, 0644, *this);
  RETURN_IF_ERROR(file);
  RETURN_IF_ERROR(file->append(content));
  return file->finish(durability);
}

Result<void> Storage::check_replaceable(const std::filesystem::path&) {
  return {};
}

Result<void> Storage::replace_with(File& content, const std::filesystem::path& path,
                                   const std::filesystem::path& temporary, Durability durability) {
  auto copied = copy_attributes(path, content);
  if (!copied && copied.error().errno_value != ENOENT) return copied;
  if (durability == Durability::Power) {
    RETURN_IF_ERROR(content.sync());
  }
  if (!content.has_staged_name())
    static_cast<void>(remove(temporary));  // publish() reports a name that could not be removed
  RETURN_IF_ERROR(publish(content, temporary));
  if (auto renamed = rename(temporary, path, true); !renamed) {
    static_cast<void>(remove(temporary));
    return renamed;
  }
  return durability == Durability::Power ? sync_directory(path.parent_path()) : Result<void>{};
}

Result<FileStatus> Storage::status_of_name(const std::filesystem::path& path) {
  return status(path);
}

std::uint32_t Storage::user() const {
  return ::geteuid();
}

Result<std::unique_ptr<File>> Storage::open_again(const File& file, const std::filesystem::path& path,
                                                  Access access) {
  auto opened = open(path, access);
  RETURN_IF_ERROR(opened);
  auto known = file.status();
  RETURN_IF_ERROR(known);
  auto found = (*opened)->status();
  RETURN_IF_ERROR(found);
  if (!found->identity.same_file(known->identity)) return replaced(path);
  return opened;
}

Result<void> Storage::check_writable(const std::filesystem::path& path) {
  auto opened = open(path, Access::ReadWrite);
  return opened ? Result<void>{} : pass_on(std::move(opened));
}

Result<std::uint64_t> File::size_bytes() const {
  const auto at = status();
  RETURN_IF_ERROR(at);
  return at->identity.size_bytes;
}

Result<void> for_each_piece(const File& file, ByteRange range, const OnPiece& on_piece) {
  // Large enough to make a system call's cost negligible, small enough to stay in the L2 cache.
  constexpr std::uint64_t kPieceBytes = 1 << 20;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(kPieceBytes, range.size_bytes)));
  while (!range.empty()) {
    const auto piece = std::span(buffer).first(std::min<std::size_t>(buffer.size(), range.size_bytes));
    RETURN_IF_ERROR(file.read(piece, range.offset));
    RETURN_IF_ERROR(on_piece(piece, range.offset));
    range = {range.offset + piece.size(), range.size_bytes - piece.size()};
  }
  return {};
}

Result<std::string> read_text(const File& file, ByteRange range) {
  std::string text(static_cast<std::size_t>(range.size_bytes), '\0');
  RETURN_IF_ERROR(file.read(std::as_writable_bytes(std::span(text)), range.offset));
  return text;
}

Result<std::string> read_text(const File& file, std::uint64_t most_bytes) {
  const auto size_bytes = file.size_bytes();
  RETURN_IF_ERROR(size_bytes);
  return read_text(file, {0, std::min(*size_bytes, most_bytes)});
}

Result<void> remove_if_there(Storage& storage, const std::filesystem::path& path) {
  auto removed = storage.remove(path);
  return removed || removed.error().errno_value == ENOENT ? Result<void>{} : removed;
}

Storage& system_storage() {
  static SystemStorage storage;
  return storage;
}

std::shared_ptr<Storage> storage_in(const std::filesystem::path& folder, OpenDirectory directory) {
  // An open directory keeps its numbers, so no other one can have them. The shards of a model share one.
  using Key = std::tuple<std::uint64_t, std::uint64_t, std::filesystem::path>;
  static Mutex mutex;  // of `known`
  static std::map<Key, std::weak_ptr<Storage>> known;
  const Key key(directory.status.identity.device, directory.status.identity.inode, folder);
  const MutexLock lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Storage>& found = known[key];
  std::shared_ptr<Storage> storage = found.lock();
  if (!storage) found = storage = std::make_shared<SystemStorage>(folder, std::move(directory));
  return storage;
}

}  // namespace stfs
