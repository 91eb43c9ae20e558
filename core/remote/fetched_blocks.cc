#include "core/remote/fetched_blocks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string>
#include <utility>

#include "core/base/cancellation.h"
#include "core/remote/cache_directory.h"
#include "core/remote/remote_workers.h"

namespace stfs {
namespace {

namespace fs = std::filesystem;

/// Makes a sparse file that vanishes with its descriptor.
Result<UniqueFd> make_unnamed(std::uint64_t size_bytes) {
  const fs::path directory = cache_directory().value_or("/var/tmp");
  UniqueFd file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (file.get() < 0) {  // an old or a foreign file system
    std::string name = (directory / "stfs-XXXXXX").native();
    file = UniqueFd(::mkostemp(name.data(), O_CLOEXEC));
    if (file.get() >= 0) ::unlink(name.c_str());
  }
  if (file.get() < 0) return fail_system(errno, directory.native(), "make a file for fetched bytes");
  if (::ftruncate(file.get(), static_cast<off_t>(size_bytes)) != 0)
    return fail_system(errno, directory.native(), fmt::format("make a sparse file of {} bytes", size_bytes));
  return file;
}

}  // namespace

FetchedBlocks::FetchedBlocks(std::unique_ptr<RemoteObject> object, UniqueFd file)
    : object_(std::move(object)), file_(std::move(file)), owner_(::getpid()) {
  is_here_.resize(static_cast<std::size_t>((size_bytes() + kBlockBytes - 1) / kBlockBytes));
}

Result<std::shared_ptr<FetchedBlocks>> FetchedBlocks::make(std::unique_ptr<RemoteObject> object,
                                                           std::span<const std::byte> first) {
  auto file = make_unnamed(object->version().size_bytes);
  RETURN_IF_ERROR(file);
  std::shared_ptr<FetchedBlocks> blocks(new FetchedBlocks(std::move(object), std::move(*file)));
  const bool is_kept = blocks->keep(first, 0).has_value();
  const bool is_whole = first.size() == blocks->size_bytes();
  // A server that sends only whole files can't be asked for a part.
  if (!is_kept && is_whole) blocks->whole_.assign(first.begin(), first.end());
  const MutexLock lock(blocks->mutex_);
  for (std::uint64_t at = 0; is_kept && at < blocks->is_here_.size(); ++at) {
    if ((at + 1) * kBlockBytes <= first.size() || is_whole) blocks->is_here_[at] = true;
  }
  return blocks;
}

ByteRange FetchedBlocks::bytes_of(const Part& part) const {
  const std::uint64_t begin = part.first * kBlockBytes;
  return {begin, std::min(part.end * kBlockBytes, size_bytes()) - begin};
}

FetchedBlocks::Blocks FetchedBlocks::blocks_of(ByteRange range) const {
  const std::uint64_t end = std::min(range.end(), size_bytes());
  return {range.offset / kBlockBytes, (end + kBlockBytes - 1) / kBlockBytes};
}

bool FetchedBlocks::are_here(Blocks blocks) const {
  for (std::uint64_t at = blocks.first; at < blocks.end; ++at) {
    if (!is_here_[at]) return false;
  }
  return true;
}

FetchedBlocks::Parts FetchedBlocks::begin(Blocks blocks) const {
  Parts parts;
  for (std::uint64_t at = blocks.first; at < blocks.end;) {
    // The last part that begins at or before this block.
    const auto coming = coming_.upper_bound(at);
    if (coming != coming_.begin() && std::prev(coming)->second->end > at) {
      at = std::prev(coming)->second->end;
      continue;
    }
    if (is_here_[at]) {
      ++at;
      continue;
    }
    auto part = std::make_shared<Part>(Part{.first = at, .end = at + 1});
    const std::uint64_t limit = std::min(
        {blocks.end, at + kPartBytes / kBlockBytes, coming == coming_.end() ? blocks.end : coming->first});
    while (part->end < limit && !is_here_[part->end]) ++part->end;
    at = part->end;
    parts.push_back(std::move(part));
  }
  return parts;
}

void FetchedBlocks::post(const Parts& parts, bool is_needed) {
  for (const auto& part : parts) {
    const auto noted = coming_.emplace(part->first, part).first;
    bool is_posted = false;
    try {
      is_posted = post_remote_job(
          [self = shared_from_this(), part](HttpConnection& connection) { self->fetch(*part, connection); },
          is_needed ? Urgency::Needed : Urgency::Guessed);
    } catch (const std::bad_alloc&) {  // the reader fetches its bytes itself
    }
    if (!is_posted) coming_.erase(noted);
  }
}

void FetchedBlocks::fetch(Part& part, HttpConnection& connection) {
  const ByteRange range = bytes_of(part);
  auto done = guard_memory([&]() -> Result<void> {
    if (is_ending_) return fail(ErrorCode::System, ECANCELED, "the file was closed");
    std::vector<std::byte> bytes(static_cast<std::size_t>(range.size_bytes));
    RETURN_IF_ERROR(object_->read(bytes, range.offset, connection, [this] { return is_ending_.load(); }));
    return keep(bytes, range.offset);
  });
  const MutexLock lock(mutex_);
  if (done) {
    std::fill(is_here_.begin() + static_cast<std::ptrdiff_t>(part.first),
              is_here_.begin() + static_cast<std::ptrdiff_t>(part.end), true);
  } else {
    part.failure = std::move(done).error();
  }
  part.is_over = true;
  const auto noted = coming_.find(part.first);
  if (noted != coming_.end() && noted->second.get() == &part) coming_.erase(noted);
  part_ends_.notify_all();
}

bool FetchedBlocks::has_room() const {
  // A twentieth of the disk stays free: the cache must stop no other program.
  constexpr std::uint64_t kShare = 20;
  struct statvfs disk {};
  return ::fstatvfs(file_.get(), &disk) != 0 || disk.f_bavail >= disk.f_blocks / kShare;
}

Result<void> FetchedBlocks::keep(std::span<const std::byte> bytes, std::uint64_t offset) const {
  if (!has_room()) return fail_system(ENOSPC, "the disk for fetched bytes", "write");
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return fail_system(written < 0 ? errno : EIO, "the file for fetched bytes", "write");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
  return {};
}

Result<void> FetchedBlocks::read(std::span<std::byte> to, std::uint64_t offset, ByteRange wanted) {
  if (!whole_.empty()) {
    std::copy_n(whole_.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
    return {};
  }
  const Blocks blocks = blocks_of({offset, to.size()});
  auto is_kept = guard_memory([&] { return bring(blocks, blocks_of(wanted)); });
  RETURN_IF_ERROR(is_kept);
  if (!*is_kept) {  // without room on the disk the bytes go to the reader alone
    HttpConnection connection;
    return object_->read(to, offset, connection, [this] { return is_given_up(); });
  }
  while (!to.empty()) {
    const ssize_t taken = ::pread(file_.get(), to.data(), to.size(), static_cast<off_t>(offset));
    if (taken < 0 && errno == EINTR) continue;
    if (taken <= 0) return fail_system(taken < 0 ? errno : EIO, "the file for fetched bytes", "read");
    to = to.subspan(static_cast<std::size_t>(taken));
    offset += static_cast<std::uint64_t>(taken);
  }
  return {};
}

Result<bool> FetchedBlocks::bring(Blocks blocks, Blocks wanted) {
  // A failed guess says nothing: this read requests the blocks again, as needed ones.
  for (bool has_asked = false;;) {
    const bool has_space = has_room();
    std::shared_ptr<Part> coming;
    {
      const MutexLock lock(mutex_);
      if (std::exchange(owner_, ::getpid()) != ::getpid()) coming_.clear();  // fork(2) copies no thread
      if (are_here(blocks)) {
        if (has_space) post(begin(wanted), false);
        return true;
      }
      if (has_space) {
        const Parts needed = begin(blocks);
        has_asked = has_asked || !needed.empty();
        post(needed, true);
        post(begin(wanted), false);
      }
      const auto there = std::ranges::find_if(coming_, [&](const auto& entry) {
        return entry.second->first < blocks.end && entry.second->end > blocks.first;
      });
      if (there == coming_.end()) return false;
      coming = there->second;
    }
    const MutexLock lock(mutex_);
    constexpr std::chrono::milliseconds kStep{200};
    while (!part_ends_.wait_for(mutex_, kStep, [&] { return coming->is_over; })) {
      if (is_given_up()) return fail_system(EINTR, "the read", "wait for the server");
    }
    if (!coming->failure || (!has_asked && !is_ending_)) continue;
    if (coming->failure->errno_value == ENOSPC || coming->failure->errno_value == EDQUOT) return false;
    return tl::unexpected(*coming->failure);
  }
}

bool FetchedBlocks::is_given_up() const {
  return is_ending_ || Cancellation::is_requested() || Cancellation::is_end();
}

void FetchedBlocks::end() {
  is_ending_ = true;
}

}  // namespace stfs
