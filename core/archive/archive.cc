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
#include "core/storage/open_directory.h"
#include "core/storage/trusted_links.h"
#include "core/storage/unmappable_store.h"

namespace stfs {
namespace {

/// Returns true if the error means that the process may not write.
bool is_refusal(int errno_value) {
  return errno_value == EACCES || errno_value == EPERM || errno_value == EROFS;
}

/// A file and its directory.
struct OpenedBeside {
  std::unique_ptr<File> file;
  std::filesystem::path real_path;
  std::shared_ptr<Storage> beside;
};

Result<OpenedBeside> open_beside(const std::filesystem::path& path, Access access, Storage& storage,
                                 Links links) {
  // Another program may replace the file between the two steps. While a program does so without a pause, most
  // attempts fail. All attempts together take about a tenth of a second.
  constexpr int kAttempts = 1000;
  for (int attempt = 1;; ++attempt) {
    auto file = storage.open_behind(path, access == Access::ReadWrite ? Links::Trusted : links);
    RETURN_IF_ERROR(file);
    // Journals are beside the resolved path, so that all processes find them, whichever link each follows.
    // Only the system's storage uses the kernel's path: it stays right if the file is renamed. Any other
    // storage finds its files by the given path only.
    std::filesystem::path real_path = real_path_of(storage.is_system() ? (*file)->descriptor() : -1, path);
    // A deleted file can still be opened for reading, through a descriptor's link in /proc.
    const bool may_differ = access == Access::ReadOnly && attempt == kAttempts;
    auto beside = storage_beside(storage, real_path, may_differ ? nullptr : file->get());
    if (beside) return OpenedBeside{std::move(*file), std::move(real_path), std::move(*beside)};
    if (attempt == kAttempts) return pass_on(std::move(beside));
  }
}

}  // namespace

Archive::Archive(std::filesystem::path path, std::filesystem::path real_path, Access access, Storage& storage,
                 std::shared_ptr<Storage> beside, std::unique_ptr<File> file)
    : LocalReader(std::move(path), std::move(real_path), storage, std::move(beside), std::move(file)),
      access_(access),
      is_served_(opened_file().is_served()),
      is_remote_(!unmappable_store(opened_file().filesystem_type()).empty()),
      lane_journal_(this->storage(), this->real_path(), opened_file()) {}

Result<std::unique_ptr<Archive>> Archive::open(const std::filesystem::path& path, Access access,
                                               Storage& storage, Io io, Links links, Deadline wait_until) {
  return guard_memory([&] { return open_unguarded(path, access, storage, io, links, wait_until); });
}

Result<std::unique_ptr<Archive>> Archive::open_unguarded(const std::filesystem::path& path, Access access,
                                                         Storage& storage, Io io, Links links,
                                                         Deadline wait_until) {
  auto absolute = absolute_path(path);
  RETURN_IF_ERROR(absolute);
  auto opened = open_beside(*absolute, access, storage, links);
  RETURN_IF_ERROR(opened);
  std::unique_ptr<Archive> archive(new Archive(std::move(*absolute), std::move(opened->real_path), access,
                                               storage, std::move(opened->beside), std::move(opened->file)));
  if (access == Access::ReadWrite) {
    RETURN_IF_ERROR(storage.check_writable(archive->path()));
  }
  if (auto loaded = archive->recover_and_load(io, wait_until); !loaded) {
    return tl::unexpected(std::move(loaded).error().within(path.string()));
  }
  return archive;
}

Result<void> Archive::recover_and_load(Io io, Deadline wait_until) {
  constexpr std::chrono::milliseconds kPause{5};
  RETURN_IF_ERROR(lock_as_reader(wait_until));
  for (bool is_left_by_dead = false;;) {
    RETURN_IF_ERROR(recover_journals(wait_until));
    // No edit begins while the header is read.
    auto locks = ArchiveLocks::for_patch(file(), path(), {}, time_left(wait_until));
    if (!locks && !lacks_readers_lock(locks.error())) return pass_on(std::move(locks));
    auto loaded = load(io);
    // Check this under the lock: a recovery could restore the header, and `loaded` would describe another
    // state.
    const bool is_hidden = !loaded && is_being_edited();
    if (locks) locks->release();
    if (!is_hidden) return loaded;
    // The edit's owner has died, and the edit is not applied yet. The loop searches once more for the
    // journal. It also continues if a recovery holds the journal, because that recovery may have died.
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
    // If the directory can't be listed, no journal can be found. Reads go on without journals.
    if (!not_shown && not_shown.error().code == ErrorCode::Unlistable) return {};
    RETURN_IF_ERROR(not_shown);
    recovered_ = std::move(*not_shown);
    return {};
  }
  auto has_journal = has_journal_beside(storage(), real_path());
  // As below, each commit searches again, and fails.
  if (!has_journal && has_journal.error().errno_value == EACCES) return {};
  RETURN_IF_ERROR(has_journal);
  if (!*has_journal) return {};
  RETURN_IF_ERROR(open_for_writing());
  auto reports = recover(storage(), real_path(), file(),
                         {.wait_until = std::min(wait_until, deadline_in(kRecoveryPatience))});
  // Nothing can be committed: each commit searches again, and fails.
  if (!reports && reports.error().code == ErrorCode::Unlistable) return {};
  // A user who may only read the archive can hold a lock on it for ever. Reads go through the journals, and
  // each commit tries to apply them again.
  if (!reports && reports.error().code == ErrorCode::Busy) reports = show_pending_journals();
  RETURN_IF_ERROR(reports);
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
    // Reads already go through the pending journals. adopt_identity() keeps them up to date.
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
  RETURN_IF_ERROR(before);
  auto opened = open_again(Access::ReadWrite);
  RETURN_IF_ERROR(opened);
  const auto after = (*opened)->status();
  RETURN_IF_ERROR(after);
  // From now on the file that is open for writing holds the lock, so that the lock can become exclusive.
  auto locked = (*opened)->try_lock(kReadersByte, LockKind::Shared);
  if (!locked && !lacks_readers_lock(locked.error())) return pass_on(std::move(locked));
  RETURN_IF_ERROR(switch_to(**opened, *before, *after));
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
  } catch (const std::bad_alloc&) {  // the file is closed here
  }
}

std::vector<std::unique_ptr<File>> Archive::take_discarded() {
  const MutexLock lock(mutex_);
  return std::exchange(discarded_, {});
}

Result<void> Archive::resume_writing() {
  return guard_memory([&]() -> Result<void> {
    const auto may_end = write_stop_.may_end(storage());
    RETURN_IF_ERROR(may_end);
    if (!*may_end) return {};
    RETURN_IF_ERROR(renew_overlay());
    write_stop_.end();
    return {};
  });
}

Result<void> Archive::adopt_own_change(const FileIdentity& written) {
  if (!tells_writes_apart()) return adopt_identity();
  RETURN_IF_ERROR(renew_overlay());
  set_identity(written);
  return {};
}

Result<void> Archive::adopt_edit(std::shared_ptr<const ArchiveHeader> header,
                                 std::span<const KeptTensor> kept) {
  return guard_memory([&]() -> Result<void> {
    const TensorIndex& tensors = header->content.tensors;
    const TensorIds& known = version()->ids;
    std::vector<std::optional<std::uint32_t>> positions(tensors.size());
    for (const KeptTensor& tensor : kept) {
      if (const auto at = tensors.find(tensor.name)) positions[*at] = known.position(tensor.tensor);
    }
    return change_structure(std::move(header), known.next(positions));
  });
}

void Archive::show_moved(Moves moves) {
  // show_moved() takes the overlay's lock exclusively, so no read uses the old ranges when `moves_` is
  // replaced.
  overlay().show_moved({moves.in_journal.empty() ? nullptr : moves.journal, moves.in_journal},
                       {moves.in_archive.empty() ? nullptr : &file(), moves.in_archive});
  moves_ = std::move(moves);
}

Result<void> Archive::sync() {
  // Take the identity before the sync: later writes may not be part of it.
  const auto before = file().status();
  RETURN_IF_ERROR(before);
  RETURN_IF_ERROR(file().sync());
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
