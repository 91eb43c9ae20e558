// Opens an archive, reads its ranges, and notices changes of the file.
#include "core/archive/archive.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <time.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <shared_mutex>
#include <string>

#include "core/base/absolute_path.h"
#include "core/journal/file_lock.h"
#include "core/journal/journal_file.h"
#include "core/journal/journal_presence.h"
#include "core/storage/store.h"

namespace stfs {

std::int64_t wall_clock_ns(Clock clock) {
  struct timespec now {};
  clock_gettime(clock == Clock::Fine ? CLOCK_REALTIME : CLOCK_REALTIME_COARSE, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

Result<std::unique_ptr<Archive>> Archive::open(const std::filesystem::path& path, Access access,
                                               Storage& storage, Io io) {
  return guard_memory([&] { return open_unguarded(path, access, storage, io); });
}

Result<std::unique_ptr<Archive>> Archive::open_unguarded(const std::filesystem::path& path, Access access,
                                                         Storage& storage, Io io) {
  std::unique_ptr<Archive> archive(new Archive());
  auto absolute = absolute_path(path);
  if (!absolute) return pass_on(std::move(absolute));
  archive->path_ = std::move(*absolute);
  std::error_code no_directory;
  // Journals lie beside the resolved path, so that processes that come by other links find them.
  archive->real_path_ = std::filesystem::canonical(archive->path_, no_directory);
  if (no_directory) archive->real_path_ = archive->path_;  // opening it reports the error
  archive->access_ = access;
  archive->storage_ = &storage;
  archive->standing_ = std::make_unique<StandingJournal>(storage, archive->real_path_);
  auto file = storage.open(archive->path_, Access::ReadOnly);
  if (!file) return pass_on(std::move(file));
  archive->file_ = std::move(*file);
  archive->is_served_ = archive->file_->is_served();
  archive->is_remote_ = !unmappable_store(archive->file_->filesystem_type()).empty();
  archive->present_ = archive->file_.get();
  archive->is_layered_ = archive->file_->filesystem_type() == OVERLAYFS_SUPER_MAGIC;
  if (access == Access::ReadWrite) {
    if (auto writable = storage.check_writable(archive->path_); !writable)
      return pass_on(std::move(writable));
  }
  if (auto recovered = archive->recover_journals(); !recovered) {
    return tl::unexpected(std::move(recovered).error().within(path.string()));
  }
  if (auto loaded = archive->load(io); !loaded) {
    return tl::unexpected(std::move(loaded).error().within(path.string()));
  }
  return archive;
}

Result<void> Archive::recover_journals() {
  if (access_ == Access::ReadOnly) {
    auto pending = pending_journals(*storage_, real_path_, file());
    // A directory that can't be listed can't be searched for journals. Reading goes on without them.
    if (!pending && pending.error().code == ErrorCode::Unlistable) return {};
    if (!pending) return pass_on(std::move(pending));
    overlays_ = std::move(pending->shown);
    recovered_ = std::move(pending->not_shown);
    has_overlays_ = !overlays_.empty();
    return {};
  }
  auto has_journal = has_journal_beside(*storage_, real_path_);
  // As below: each commit looks again, and fails.
  if (!has_journal && has_journal.error().errno_value == EACCES) return {};
  if (!has_journal) return pass_on(std::move(has_journal));
  if (!*has_journal) return {};
  if (auto opened = open_for_writing(); !opened) return opened;
  auto reports = recover(*storage_, real_path_, file());
  // Nothing can be committed either: each commit looks again, and fails.
  if (!reports && reports.error().code == ErrorCode::Unlistable) return {};
  if (!reports) return pass_on(std::move(reports));
  recovered_ = std::move(*reports);
  note_left_void(recovered_);
  return {};
}

void Archive::note_left_void(const std::vector<JournalReport>& reports) {
  for (const JournalReport& report : reports) {
    if (report.is_left_void && std::ranges::find(left_void_, report.path) == left_void_.end())
      left_void_.push_back(report.path);
  }
}

Result<void> Archive::load(Io io) {
  auto status = file().status();
  if (!status) return pass_on(std::move(status));
  status_ = stamped_ = *status;
  identity_ = status->identity;
  const std::uint64_t size_bytes = identity_.size_bytes;
  auto json = header_text(size_bytes);
  if (!json) return pass_on(std::move(json));
  header_size_bytes_ = json->size();
  header_hash_ = XXH3_64bits(json->data(), json->size());
  auto header = parse_header(*json, size_bytes - data_offset());
  if (!header) return pass_on(std::move(header));
  header_ = std::move(*header);
  auto bytes = ByteSource::open(file(), size_bytes, io);
  if (!bytes) return pass_on(std::move(bytes));
  bytes_ = std::move(*bytes);
  return {};
}

Result<std::string> Archive::header_text(std::uint64_t file_size_bytes) const {
  std::array<std::byte, kHeaderLengthBytes> first{};
  const std::span<std::byte> there(first.data(), std::min<std::uint64_t>(file_size_bytes, first.size()));
  if (auto read = read_file(there, 0); !read) return pass_on(std::move(read));
  auto length = header_length(there, file_size_bytes);
  if (!length) return pass_on(std::move(length));
  std::string json(static_cast<std::size_t>(*length), '\0');
  if (auto read = read_file(std::as_writable_bytes(std::span(json)), kHeaderLengthBytes); !read) {
    return pass_on(std::move(read));
  }
  return json;
}

Result<void> Archive::read_file(std::span<std::byte> to, std::uint64_t offset) const {
  if (auto read = file().read(to, offset); !read) return read;
  return lay_over(to, offset);
}

Result<void> Archive::read_through(std::span<std::byte> to, std::uint64_t offset) const {
  if (to.empty()) return {};
  if (auto read = bytes_->read(to, offset); !read) {
    return tl::unexpected(std::move(read).error().within(path_.string()));
  }
  return lay_over(to, offset);
}

Result<void> Archive::lay_over(std::span<std::byte> to, std::uint64_t offset) const {
  if (!has_overlays_ && !is_applying_) return {};
  const ByteRange wanted{offset, to.size()};
  const auto read_over = [&](const File& journal, std::span<const JournalRange> ranges) -> Result<void> {
    for (const JournalRange& range : ranges) {
      const ByteRange part = range.archive.intersection(wanted);
      if (part.empty()) continue;
      const auto place = to.subspan(static_cast<std::size_t>(part.offset - offset),
                                    static_cast<std::size_t>(part.size_bytes));
      const std::uint64_t from = range.journal_offset + (part.offset - range.archive.offset);
      if (auto read = journal.read(place, from); !read) return read;
    }
    return {};
  };
  const std::shared_lock lock(overlay_lock_);
  for (const PendingJournal& journal : overlays_) {
    if (auto read = read_over(*journal.file, journal.ranges); !read) return read;
  }
  return on_the_way_.journal != nullptr ? read_over(*on_the_way_.journal, on_the_way_.ranges)
                                        : Result<void>{};
}

Result<std::span<const std::byte>> Archive::read(ByteRange file_range,
                                                 std::vector<std::byte>& scratch) const {
  auto read = guard_memory([&] {
    scratch.resize(static_cast<std::size_t>(file_range.size_bytes));
    return read_through(scratch, file_range.offset);
  });
  if (!read) return pass_on(std::move(read));
  return std::span<const std::byte>(scratch);
}

Result<MappedSpan> Archive::map(ByteRange file_range) const {
  if (has_overlays_ || is_applying_ || file_range.empty()) return MappedSpan();
  auto bytes = bytes_->map(file_range);
  if (!bytes) return tl::unexpected(std::move(bytes).error().within(path_.string()));
  return bytes;
}

Result<Archive::Change> Archive::check_for_change() {
  return guard_memory([&] { return look_for_change(); });
}

Result<Archive::Change> Archive::look_for_change() {
  const FileIdentity known = identity();
  auto now = file().status();
  if (!now) return pass_on(std::move(now));
  Change change;
  change.size_bytes = now->identity.size_bytes;
  change.is_touched = now->identity != known;
  if (change.is_touched) {
    if (auto followed = follow_copy(); !followed) return pass_on(std::move(followed));
    const auto json = header_text(change.size_bytes);
    // A storage error says nothing about the header.
    if (!json && json.error().code == ErrorCode::System) return tl::unexpected(json.error());
    change.is_broken = !json || XXH3_64bits(json->data(), json->size()) != header_hash_;
  }
  const auto at_path = storage_->status(path_);
  if (!at_path && at_path.error().errno_value != ENOENT && at_path.error().errno_value != ENOTDIR) {
    return tl::unexpected(at_path.error());
  }
  change.is_gone = !at_path;
  if (at_path) change.links = at_path->links;
  // If overlayfs has copied the archive, our own open file has the copy's inode number too.
  change.is_replaced = !at_path || !at_path->identity.same_file(now->identity);
  return change;
}

bool Archive::is_as_known() const {
  const auto now = file().status();
  return now && now->identity == identity();
}

ArchiveStamp Archive::stamp() const {
  const std::scoped_lock lock(mutex_);
  return {.device = stamped_.identity.device,
          .inode = stamped_.identity.inode,
          .birth_ns = stamped_.birth_ns,
          .size_bytes = status_.identity.size_bytes,
          .header_size_bytes = header_size_bytes_,
          .header_hash = header_hash_};
}

Result<void> Archive::open_for_writing() {
  return guard_memory([this] { return open_for_writing_unguarded(); });
}

Result<void> Archive::open_for_writing_unguarded() {
  if (present_ != file_.get()) return {};
  if (access_ == Access::ReadOnly) return fail_system(EROFS, path_.string(), "open for writing");
  const std::scoped_lock opening(opening_mutex_);
  if (writable_) return {};
  const auto before = file_->status();
  if (!before) return tl::unexpected(before.error());
  const auto began = std::chrono::steady_clock::now();
  auto opened = storage_->open_again(*file_, path_, Access::ReadWrite);
  if (!opened) return pass_on(std::move(opened));
  const auto took = std::chrono::steady_clock::now() - began;
  const auto after = (*opened)->status();
  if (!after) return tl::unexpected(after.error());
  const bool is_copied = !after->identity.same_file(before->identity) || after->birth_ns != before->birth_ns;
  // Another process may have caused the copy earlier.
  if (bytes_ && (is_copied || is_layered_ || !bytes_->is_mapped())) {
    if (auto followed = bytes_->follow(**opened); !followed) return followed;
  }
  writable_ = std::move(*opened);
  {
    const std::scoped_lock lock(mutex_);
    stamped_.identity.device = after->identity.device;
    stamped_.identity.inode = after->identity.inode;
    stamped_.birth_ns = after->birth_ns;
    // Keep the known times, so that changes by others are still noticed.
    if (identity_.same_file(before->identity)) {
      identity_.device = after->identity.device;
      identity_.inode = after->identity.inode;
    }
  }
  present_ = writable_.get();
  if (!is_copied) return {};
  copy_up_ = {after->identity.size_bytes, std::chrono::duration_cast<std::chrono::milliseconds>(took)};
  if (tell_copy_) tell_copy_(*copy_up_);
  return {};
}

void Archive::tell_copy_to(std::function<void(const CopyUp&)> tell) {
  const std::scoped_lock opening(opening_mutex_);
  tell_copy_ = std::move(tell);
  if (copy_up_) tell_copy_(*copy_up_);
}

Result<void> Archive::follow_copy() {
  // A file that is open for writing has been copied, and the map shows the copy.
  if (!is_layered_ || !bytes_->is_mapped() || present_ != file_.get()) return {};
  auto copy = storage_->open_again(*file_, path_, Access::ReadOnly);
  // The file was deleted or replaced: the map keeps the old one.
  if (!copy && copy.error().code == ErrorCode::ArchiveChanged) return {};
  if (!copy) return pass_on(std::move(copy));
  return bytes_->remap(**copy);
}

void Archive::discard(std::unique_ptr<File> file) {
  const std::scoped_lock lock(mutex_);
  try {
    discarded_.push_back(std::move(file));
  } catch (const std::bad_alloc&) {  // closed here and now
  }
}

std::vector<std::unique_ptr<File>> Archive::take_discarded() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(discarded_, {});
}

void Archive::stop_writing(Error why, std::filesystem::path journal) {
  const std::scoped_lock lock(mutex_);
  if (write_failure_) return;
  write_failure_ = std::move(why);
  unfinished_ = std::move(journal);
}

Result<void> Archive::resume_writing() {
  return guard_memory([&]() -> Result<void> {
    std::unique_lock lock(mutex_);
    if (!write_failure_ || unfinished_.empty()) return {};
    const std::filesystem::path journal = unfinished_;
    lock.unlock();
    auto is_there = is_listed(*storage_, journal);
    if (!is_there) return pass_on(std::move(is_there));
    if (*is_there) return {};
    // Recovery synced the archive before it removed the name. Sync the removal: a name that came back would
    // be applied again.
    if (auto synced = storage_->sync_directory(journal.parent_path()); !synced) return synced;
    if (auto renewed = renew_overlays(); !renewed) return renewed;
    lock.lock();
    write_failure_.reset();
    return {};
  });
}

Result<void> Archive::check_writable() const {
  const std::scoped_lock lock(mutex_);
  if (write_failure_) return tl::unexpected(*write_failure_);
  return {};
}

void Archive::reserve_overlay() {
  const std::scoped_lock lock(overlay_lock_);
  overlays_.reserve(overlays_.size() + 1);
}

void Archive::overlay(PendingJournal journal) {
  const std::scoped_lock lock(overlay_lock_);
  overlays_.push_back(std::move(journal));
  has_overlays_ = true;
}

void Archive::show_while_applied(OnTheWay blocks) {
  const std::scoped_lock lock(overlay_lock_);
  on_the_way_ = blocks;
  is_applying_ = blocks.journal != nullptr;
}

Result<void> Archive::adopt_identity() {
  auto status = file().status();
  if (!status) return pass_on(std::move(status));
  if (auto renewed = renew_overlays(); !renewed) return renewed;
  const std::scoped_lock lock(mutex_);
  identity_ = status->identity;
  return {};
}

Result<void> Archive::adopt_own_change(const FileIdentity& written) {
  if (is_served_ || is_remote_) return adopt_identity();
  if (auto renewed = renew_overlays(); !renewed) return renewed;
  const std::scoped_lock lock(mutex_);
  identity_ = written;
  return {};
}

Result<void> Archive::sync() {
  // Take the identity before the sync: later writes may not be part of it.
  const auto before = file().status();
  if (!before) return tl::unexpected(before.error());
  if (auto synced = file().sync(); !synced) return synced;
  const std::scoped_lock lock(mutex_);
  synced_ = before->identity;
  return {};
}

Result<void> Archive::sync_what_others_wrote() {
  {
    const std::scoped_lock lock(mutex_);
    if (synced_ == identity_) return {};
  }
  auto synced = sync();
  if (synced) return {};
  Error why = synced.error();
  why.message +=
      "; what another program has written there may be lost, and nothing more is written until the "
      "archive is opened anew";
  stop_writing(std::move(why), {});
  return synced;
}

Result<void> Archive::renew_overlays() {
  if (!has_overlays_) return {};
  auto found = pending_journals(*storage_, real_path_, file());
  if (!found) return pass_on(std::move(found));
  const std::scoped_lock lock(overlay_lock_);
  overlays_ = std::move(found->shown);
  has_overlays_ = !overlays_.empty();
  return {};
}

FileIdentity Archive::identity() const {
  const std::scoped_lock lock(mutex_);
  return identity_;
}

}  // namespace stfs
