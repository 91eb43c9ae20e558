#include "fs/write/made_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/storage/new_file.h"
#include "fs/base/log.h"

namespace stfs {

MadeFile::MadeFile(std::unique_ptr<File> file, std::filesystem::path path, std::filesystem::path directory)
    : file_(std::move(file)),
      directory_(std::move(directory)),
      path_(std::move(path)),
      stream_("an archive", {}) {}

std::filesystem::path MadeFile::path() const {
  const std::scoped_lock lock(mutex_);
  return path_;
}

void MadeFile::move_to(std::filesystem::path path, std::optional<uid_t> replacer) {
  const std::scoped_lock lock(mutex_);
  path_ = std::move(path);
  replacer_ = replacer;
}

std::optional<uid_t> MadeFile::replacer() const {
  const std::scoped_lock lock(mutex_);
  return replacer_;
}

Result<void> MadeFile::refuse(Error why) {
  log::warning("{}: dropped: {}", path_.string(), why.message);
  static_cast<void>(file_->resize(0));  // gives the space back
  failure_ = std::move(why);
  return tl::unexpected(*failure_);
}

Result<void> MadeFile::write(std::span<const std::byte> from, std::uint64_t offset, Caller caller) {
  const std::scoped_lock lock(mutex_);
  if (failure_) return tl::unexpected(*failure_);
  if (is_named_) return fail(ErrorCode::ArchiveChanged, ESTALE, "the file has become a model");
  writers_.note(caller);
  if (auto taken = stream_.write(from, offset); !taken) return refuse(std::move(taken).error());
  if (auto written = file_->write(from, offset); !written) return refuse(std::move(written).error());
  writeback_.follow(*file_, {offset, from.size()});
  return {};
}

Result<void> MadeFile::resize(std::uint64_t size_bytes, Caller caller) {
  const std::scoped_lock lock(mutex_);
  if (failure_) return tl::unexpected(*failure_);
  if (is_named_) return fail(ErrorCode::ArchiveChanged, ESTALE, "the file has become a model");
  if (caller.is_named()) writers_.note(caller);
  if (auto taken = stream_.resize(size_bytes); !taken) return refuse(std::move(taken).error());
  return size_bytes == 0 ? file_->resize(0) : Result<void>();
}

Result<std::vector<std::byte>> MadeFile::read(std::uint64_t offset, std::size_t size_bytes) const {
  std::vector<std::byte> bytes(size_bytes);
  std::size_t done = 0;
  while (done < size_bytes) {
    const ssize_t got = ::pread(file_->descriptor(), bytes.data() + done, size_bytes - done,
                                static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_system(errno, path().string(), "read");
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

Result<struct stat> MadeFile::status() const {
  struct stat st {};
  if (::fstat(file_->descriptor(), &st) != 0) return fail_system(errno, path().string(), "stat");
  if (st.st_nlink == 0) st.st_nlink = 1;  // an archive has no name yet
  return st;
}

Result<void> MadeFile::set_mtime(struct timespec mtime) {
  const struct timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, mtime};
  if (::futimens(file_->descriptor(), times) != 0) return fail_system(errno, path().string(), "set times");
  return {};
}

Result<void> MadeFile::set_mode(mode_t permissions) {
  return file_->set_mode(permissions);
}

Result<void> MadeFile::set_owner(uid_t uid, gid_t gid) {
  return file_->set_owner(uid, gid);
}

Result<void> MadeFile::sync() {
  return file_->sync();
}

Result<bool> MadeFile::close(OpenFile& file, Owner owner, pid_t closer) {
  const std::scoped_lock lock(mutex_);
  if (failure_) return tl::unexpected(*failure_);
  if (is_named_) return false;
  const auto whole = stream_.check();
  CloseFacts facts{.content = stream_.size_bytes() == 0 ? Content::Clean
                              : whole                   ? Content::Whole
                                                        : Content::Cut,
                   .kind = FileKind::New};
  if (facts.content == Content::Clean) return false;
  note_closer(facts, writers_, file, owner, closer, [](pid_t) { return false; });  // nobody maps it
  switch (decide(facts)) {
    case CloseDecision::Wait:
    case CloseDecision::Keep: return false;
    case CloseDecision::Commit: return true;
    case CloseDecision::RollBack:
    case CloseDecision::Doubt:
      static_cast<void>(
          refuse({ErrorCode::InvalidArgument, EIO,
                  fmt::format("its writer (pid {}) was killed by a signal, or may have been", closer)}));
      break;
    case CloseDecision::Refuse:
    case CloseDecision::Fail: static_cast<void>(refuse(whole.error())); break;
  }
  return tl::unexpected(*failure_);
}

bool MadeFile::end() {
  const std::scoped_lock lock(mutex_);
  if (is_named_ || failure_) return false;
  const auto whole = stream_.check();
  if (whole && !writers_.is_any_killed()) return true;
  static_cast<void>(refuse(whole ? Error{ErrorCode::InvalidArgument, EIO, "its writer was killed by a signal"}
                                 : whole.error()));
  return false;
}

bool MadeFile::has_failed() const {
  const std::scoped_lock lock(mutex_);
  return failure_.has_value();
}

bool MadeFile::is_due() const {
  const std::scoped_lock lock(mutex_);
  return !is_named_ && !failure_ && stream_.check().has_value();
}

Result<void> MadeFile::give_name(Storage& storage, Durability durability) {
  std::unique_lock lock(mutex_);
  const std::filesystem::path path = path_;
  const bool replaces = replacer_.has_value();
  lock.unlock();  // a sync takes long
  auto published = publish(storage, durability, path, replaces);
  lock.lock();
  if (!published) return refuse(std::move(published).error());
  is_named_ = true;
  return {};
}

Result<void> MadeFile::publish(Storage& storage, Durability durability, const std::filesystem::path& path,
                               bool replaces) const {
  if (durability == Durability::Power) {
    if (auto synced = file_->sync(); !synced) return synced;
  }
  const auto failed_as = [&](const Result<void>& named) {
    return fail_system(named.error().errno_value, path.string(), "create");
  };
  const std::filesystem::path opened = directory_ / path.filename();
  if (!replaces) {
    // A file that has a name already would replace another one.
    if (file_->has_staged_name() && storage.status(opened))
      return fail_system(EEXIST, path.string(), "create");
    if (auto named = storage.publish(*file_, opened); !named) return failed_as(named);
  } else {
    const std::filesystem::path between = directory_ / new_temporary_file_name();
    if (auto named = storage.publish(*file_, between); !named) return failed_as(named);
    if (::rename(between.c_str(), opened.c_str()) != 0) {
      auto failed = fail_system(errno, path.string(), "replace");
      static_cast<void>(storage.remove(between));
      return failed;
    }
  }
  return durability == Durability::Power ? storage.sync_directory(directory_) : Result<void>();
}

void MadeFile::drop(Error why) {
  const std::scoped_lock lock(mutex_);
  if (is_named_ || failure_) return;
  static_cast<void>(refuse(std::move(why)));
}

}  // namespace stfs
