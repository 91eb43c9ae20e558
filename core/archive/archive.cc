// Opens an archive, and follows its file through our own commits.
#include "core/archive/archive.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "core/base/absolute_path.h"
#include "core/base/mutex.h"
#include "core/base/name_hash.h"
#include "core/base/shell_word.h"
#include "core/journal/file_lock.h"
#include "core/journal/journal_file.h"
#include "core/journal/journal_scan.h"
#include "core/storage/trusted_links.h"
#include "core/storage/unmappable_store.h"

namespace stfs {
namespace {

/// Whether a process may read and not write.
bool is_refusal(int errno_value) {
  return errno_value == EACCES || errno_value == EPERM || errno_value == EROFS;
}

}  // namespace

Archive::Archive(std::filesystem::path path, std::filesystem::path real_path, Access access, Storage& storage,
                 std::unique_ptr<File> file)
    : LocalReader(std::move(path), std::move(real_path), storage, std::move(file)),
      access_(access),
      is_served_(opened_file().is_served()),
      is_remote_(!unmappable_store(opened_file().filesystem_type()).empty()),
      lane_journal_(storage, this->real_path(), opened_file()) {}

Result<std::unique_ptr<Archive>> Archive::open(const std::filesystem::path& path, Access access,
                                               Storage& storage, Io io, Links links, Deadline wait_until) {
  return guard_memory([&] { return open_unguarded(path, access, storage, io, links, wait_until); });
}

Result<std::unique_ptr<Archive>> Archive::open_unguarded(const std::filesystem::path& path, Access access,
                                                         Storage& storage, Io io, Links links,
                                                         Deadline wait_until) {
  auto absolute = absolute_path(path);
  if (!absolute) return pass_on(std::move(absolute));
  auto file = storage.open_behind(*absolute, access == Access::ReadWrite ? Links::Trusted : links);
  if (!file) return pass_on(std::move(file));
  // Journals are files beside the resolved path: so all processes find them, whichever link each has
  // followed. A storage that is not the system's finds its files by the given path only, and the kernel would
  // tell where a file is that somebody has moved meanwhile.
  const int descriptor = &storage == &system_storage() ? (*file)->descriptor() : -1;
  std::filesystem::path real_path = real_path_of(descriptor, *absolute);
  std::unique_ptr<Archive> archive(
      new Archive(std::move(*absolute), std::move(real_path), access, storage, std::move(*file)));
  if (access == Access::ReadWrite) {
    if (auto writable = storage.check_writable(archive->path()); !writable)
      return pass_on(std::move(writable));
  }
  if (auto loaded = archive->recover_and_load(io, wait_until); !loaded) {
    return tl::unexpected(std::move(loaded).error().within(path.string()));
  }
  return archive;
}

Result<void> Archive::recover_and_load(Io io, Deadline wait_until) {
  constexpr std::chrono::milliseconds kPause{5};
  if (auto locked = lock_as_reader(wait_until); !locked) return locked;
  for (bool is_left_by_dead = false;;) {
    if (auto recovered = recover_journals(wait_until); !recovered) return recovered;
    // No edit begins while the header is read.
    auto locks = ArchiveLocks::for_patch(file(), path(), {}, time_left(wait_until));
    if (!locks && !lacks_readers_lock(locks.error())) return pass_on(std::move(locks));
    auto loaded = load(io);
    // Under the lock: a recovery would show the header again, and the error would be about another state.
    const bool is_hidden = !loaded && is_being_edited();
    if (locks) locks->release();
    if (!is_hidden) return loaded;
    // The edit's owner has died, and nobody has applied the edit yet. The loop looks for the journal once
    // more. It also looks again if a recovery had the journal at that moment, because the recovery may have
    // died.
    const bool has_owner = ArchiveLocks::is_edited_by_other(file());
    if (!has_owner && std::exchange(is_left_by_dead, true) &&
        !has_journal_that_is({JournalState::Committed, JournalState::InUse})) {
      return fail(ErrorCode::ArchiveChanged, EIO,
                  fmt::format("a process that has died was changing its structure; `stfs recover {}` tells "
                              "whether that can be finished",
                              shell_word(path().native())));
    }
    if (time_left(wait_until).count() == 0)
      return fail(ErrorCode::Busy, EBUSY, "another process is changing its structure");
    std::this_thread::sleep_for(kPause);
  }
}

Result<void> Archive::recover_journals(Deadline wait_until) {
  if (access_ == Access::ReadOnly) {
    auto not_shown = show_pending_journals();
    // A directory that can't be listed can't be searched for journals. Reading goes on without them.
    if (!not_shown && not_shown.error().code == ErrorCode::Unlistable) return {};
    if (!not_shown) return pass_on(std::move(not_shown));
    recovered_ = std::move(*not_shown);
    return {};
  }
  auto has_journal = has_journal_beside(storage(), real_path());
  // As below: each commit looks again, and fails.
  if (!has_journal && has_journal.error().errno_value == EACCES) return {};
  if (!has_journal) return pass_on(std::move(has_journal));
  if (!*has_journal) return {};
  if (auto opened = open_for_writing(); !opened) return opened;
  auto reports = recover(storage(), real_path(), file(),
                         {.wait_until = std::min(wait_until, deadline_in(kRecoveryPatience))});
  // Nothing can be committed either: each commit looks again, and fails.
  if (!reports && reports.error().code == ErrorCode::Unlistable) return {};
  // A user who may only read the archive can hold a lock on it for ever. Reads go through the journals, and
  // each commit tries to apply them again.
  if (!reports && reports.error().code == ErrorCode::Busy) reports = show_pending_journals();
  if (!reports) return pass_on(std::move(reports));
  recovered_ = std::move(*reports);
  note_left_void(recovered_);
  return {};
}

bool Archive::has_journal_that_is(std::initializer_list<JournalState> states) const {
  return guard_memory([&]() -> Result<bool> {
           auto found = scan_journals(storage(), real_path(), file());
           return found && std::ranges::any_of(*found, [&](const FoundJournal& journal) {
                    return std::ranges::find(states, journal.report.state) != states.end();
                  });
         })
      .value_or(false);
}

bool Archive::has_dead_commit() const {
  return has_journal_that_is({JournalState::Committed});
}

Result<bool> Archive::finish_dead_commits() {
  return guard_memory([&]() -> Result<bool> {
    // Reads go through the journals that were found before; adopt_identity() follows these.
    if (overlay().has_pending()) return false;
    const auto has_journal = has_journal_beside(storage(), real_path());
    if (!has_journal || !*has_journal || !has_dead_commit()) return false;
    if (access_ == Access::ReadWrite) {
      auto opened = open_for_writing();
      auto reports = opened ? recover(storage(), real_path(), file()) : tl::unexpected(opened.error());
      if (reports) note_left_void(*reports);
      if (reports) return true;
      const bool is_busy = reports.error().code == ErrorCode::Busy;
      if (!is_busy && !is_refusal(reports.error().errno_value)) return pass_on(std::move(reports));
    }
    auto not_shown = show_pending_journals();
    return not_shown ? Result<bool>(!is_as_in_file()) : pass_on(std::move(not_shown));
  });
}

void Archive::note_left_void(const std::vector<JournalReport>& reports) {
  for (const JournalReport& report : reports) {
    if (report.is_left_void && std::ranges::find(left_void_, report.path) == left_void_.end())
      left_void_.push_back(report.path);
  }
}

Result<void> Archive::open_for_writing() {
  return guard_memory([this] { return open_for_writing_unguarded(); });
}

Result<void> Archive::open_for_writing_unguarded() {
  if (is_opened_again()) return {};
  if (access_ == Access::ReadOnly) return fail_system(EROFS, path().string(), "open for writing");
  const MutexLock opening(opening_mutex_);
  if (writable_) return {};
  const auto before = opened_file().status();
  if (!before) return tl::unexpected(before.error());
  auto opened = storage().open_again(opened_file(), path(), Access::ReadWrite);
  if (!opened) return pass_on(std::move(opened));
  const auto after = (*opened)->status();
  if (!after) return tl::unexpected(after.error());
  // From now on the file that is open for writing holds the lock, so that it can become an exclusive one.
  auto locked = (*opened)->try_lock(kReadersByte, LockKind::Shared);
  if (!locked && !lacks_readers_lock(locked.error())) return pass_on(std::move(locked));
  if (auto switched = switch_to(**opened, *before, *after); !switched) return switched;
  opened_file().unlock(kReadersByte);
  writable_ = std::move(*opened);
  return {};
}

bool Archive::has_other_readers() const {
  const auto locked = file().is_locked_by_other(kReadersByte, LockKind::Exclusive);
  return !locked || *locked;
}

std::optional<pid_t> Archive::other_reader() const {
  return file().lock_holder(kReadersByte);
}

bool Archive::keep_readers_out() {
  const auto conflict = file().try_lock(kReadersByte, LockKind::Exclusive);
  return conflict && !*conflict;
}

void Archive::let_readers_in() {
  static_cast<void>(file().try_lock(kReadersByte, LockKind::Shared));
}

void Archive::discard(std::unique_ptr<File> file) {
  const MutexLock lock(mutex_);
  try {
    discarded_.push_back(std::move(file));
  } catch (const std::bad_alloc&) {  // closed here and now
  }
}

std::vector<std::unique_ptr<File>> Archive::take_discarded() {
  const MutexLock lock(mutex_);
  return std::exchange(discarded_, {});
}

Result<void> Archive::resume_writing() {
  return guard_memory([&]() -> Result<void> {
    const auto may_end = write_stop_.may_end(storage());
    if (!may_end) return tl::unexpected(may_end.error());
    if (!*may_end) return {};
    if (auto renewed = renew_overlay(); !renewed) return renewed;
    write_stop_.end();
    return {};
  });
}

Result<void> Archive::adopt_own_change(const FileIdentity& written) {
  if (!tells_writes_apart()) return adopt_identity();
  if (auto renewed = renew_overlay(); !renewed) return renewed;
  set_identity(written);
  return {};
}

Result<void> Archive::adopt_own_edit(std::string_view header,
                                     const NameMap<std::string_view, TensorId>& before) {
  return guard_memory([&]() -> Result<void> {
    const std::string_view json = header.substr(kHeaderLengthBytes);
    auto size_bytes = file().size_bytes();
    if (!size_bytes) return pass_on(std::move(size_bytes));
    auto content = parse_header(json, *size_bytes - header.size());
    if (!content) return pass_on(std::move(content));
    const TensorIds& known = version()->ids;
    std::vector<std::optional<std::uint32_t>> positions(content->tensors.size());
    for (std::uint32_t at = 0; at < content->tensors.size(); ++at) {
      const auto found = before.find(content->tensors[at].name);
      if (found != before.end()) positions[at] = known.position(found->second);
    }
    return change_structure(std::move(*content), json, known.next(positions));
  });
}

void Archive::show_moved(Moves moves) {
  // The overlay's lock keeps readers away from the old ranges before they go.
  overlay().show_moved({moves.in_journal.empty() ? nullptr : moves.journal, moves.in_journal},
                       {moves.in_archive.empty() ? nullptr : &file(), moves.in_archive});
  moves_ = std::move(moves);
}

Result<void> Archive::sync() {
  // Take the identity before the sync: later writes may not be part of it.
  const auto before = file().status();
  if (!before) return tl::unexpected(before.error());
  if (auto synced = file().sync(); !synced) return synced;
  const MutexLock lock(mutex_);
  synced_ = before->identity;
  return {};
}

Result<void> Archive::sync_what_others_wrote() {
  {
    const MutexLock lock(mutex_);
    if (synced_ == identity()) return {};
  }
  auto synced = sync();
  if (synced) return {};
  Error why = synced.error();
  why.message +=
      "; writes of other programs to these blocks may be lost, and nothing more is written until the "
      "archive is opened again";
  stop_writing(std::move(why), {});
  return synced;
}

}  // namespace stfs
