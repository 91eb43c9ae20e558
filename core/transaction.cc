// The steps of a commit, as transaction.h numbers them.
#include "core/transaction.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "core/block_plan.h"
#include "core/journal_apply.h"
#include "core/recovery.h"

namespace stfs {
namespace {

/// Every tensor's readers are kept out while the bytes change; a lock that several share is taken once,
/// and all in one order.
class ReadersOut {
 public:
  void add(ReaderWriterLock& lock) { locks_.push_back(&lock); }
  void take() {
    std::sort(locks_.begin(), locks_.end());
    locks_.erase(std::unique(locks_.begin(), locks_.end()), locks_.end());
    for (ReaderWriterLock* lock : locks_) held_.emplace_back(*lock);
  }
  void release() { held_.clear(); }

 private:
  std::vector<ReaderWriterLock*> locks_;
  std::vector<std::unique_lock<ReaderWriterLock>> held_;
};

/// Larger than that of every earlier commit of the archive: an earlier one has set the archive's mtime from
/// the same coarse clock after it took its own, and those of this process are counted.
std::uint64_t next_sequence(std::int64_t archive_mtime_ns) {
  static std::atomic<std::uint64_t> last = 0;
  struct timespec now {};
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  const std::int64_t now_ns = std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  const auto least = static_cast<std::uint64_t>(std::max(now_ns, archive_mtime_ns + 1));
  std::uint64_t before = last.load();
  std::uint64_t next = 0;
  do {
    next = std::max(least, before + 1);
  } while (!last.compare_exchange_weak(before, next));
  return next;
}

std::uint64_t total_bytes(const std::vector<JournalRange>& ranges) {
  std::uint64_t total = 0;
  for (const JournalRange& range : ranges) total += range.archive.size_bytes;
  return total;
}

}  // namespace

Result<Staging*> Transaction::stage(std::uint32_t tensor) {
  if (!journal_) {
    auto journal = Journal::create(archive_.storage(), archive_.real_path());
    if (!journal) return pass_on(std::move(journal));
    journal_ = std::move(*journal);
  }
  std::unique_ptr<Staging>& stage = stages_[tensor];
  if (!stage) {
    stage = std::make_unique<Staging>(*journal_, archive_.file_range(archive_.tensors()[tensor].data));
  }
  return stage.get();
}

void Transaction::drop(std::uint32_t tensor) {
  stages_.erase(tensor);
}

bool Transaction::is_dirty() const {
  return std::ranges::any_of(stages_, [](const auto& entry) { return entry.second->is_dirty(); });
}

Result<void> Transaction::commit(const CommitOptions& options, const LockOf& lock_of) {
  if (auto writable = archive_.check_writable(); !writable) return writable;
  if (auto sizes = check_sizes(); !sizes) return sizes;
  std::vector<Staging*> stages;
  std::vector<ByteRange> touched;
  ReadersOut readers;
  for (const auto& [tensor, stage] : stages_) {
    auto pieces = stage->pieces();
    if (!pieces) return pass_on(std::move(pieces));
    if (pieces->empty()) continue;
    stages.push_back(stage.get());
    touched.insert(touched.end(), pieces->begin(), pieces->end());
    readers.add(lock_of(tensor));
  }
  if (stages.empty()) {
    stages_.clear();
    return {};
  }

  auto locks = lock(touched, options);
  if (!locks) return pass_on(std::move(locks));
  if (auto same = check_archive(options); !same) return same;

  const std::uint64_t size_bytes = archive_.stamp().size_bytes;
  auto ranges = plan_blocks(archive_.file(), size_bytes, *journal_, stages);
  if (!ranges) return pass_on(std::move(ranges));
  const std::uint64_t total = total_bytes(*ranges);
  std::uint64_t hashed = 0;
  for (JournalRange& range : *ranges) {
    auto fresh = hash_blocks(journal_->file(), {range.journal_offset, range.archive.size_bytes});
    if (!fresh) return pass_on(std::move(fresh));
    auto old = hash_blocks(archive_.file(), range.archive);
    if (!old) return pass_on(std::move(old));
    range.new_hashes = std::move(*fresh);
    range.old_hashes = std::move(*old);
    hashed += range.archive.size_bytes;
    if (options.on_progress) options.on_progress(hashed / 2, total);
  }
  JournalRecord record{.id = {},
                       .archive = archive_.stamp(),
                       .sequence = next_sequence(archive_.identity().mtime_ns),
                       .owner_pid = 0,
                       .coordinator = {},
                       .ranges = *ranges};
  if (auto sealed = journal_->seal(std::move(record), options.durability); !sealed) return sealed;
  if (auto published = journal_->publish(options.durability); !published) {
    if (published.error().code == ErrorCode::CommitUnknown) archive_.stop_writing(published.error());
    return published;
  }

  // Committed. From here on nothing is undone; what can't be finished stays in the journal.
  readers.take();
  const auto on_bytes = [&](std::uint64_t done) {
    if (options.on_progress) options.on_progress(total / 2 + done / 2, total);
  };
  auto done = apply_ranges(archive_.file(), journal_->file(), *ranges, on_bytes);
  if (!done) {
    apply_failed(done.error(), std::move(*ranges));
    return done;
  }
  // Readers come back before the sync: they may see what is committed, wherever it is.
  readers.release();
  if (options.durability == Durability::Power) done = archive_.file().sync();
  if (done) done = archive_.adopt_identity();
  // A journal that stayed would be applied again, over whatever is committed next.
  if (done) done = journal_->retire();
  if (!done) {
    apply_failed(done.error(), std::move(*ranges));
    return done;
  }
  stages_.clear();
  journal_.reset();
  return {};
}

Result<ArchiveLocks> Transaction::lock(const std::vector<ByteRange>& ranges, const CommitOptions& options) {
  constexpr int kAttempts = 8;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    ArchiveLocks locks;
    if (options.uses_locks) {
      auto taken = ArchiveLocks::for_patch(archive_.file(), archive_.path(), ranges, options.lock_patience);
      if (!taken) return taken;
      locks = std::move(*taken);
    }
    auto is_due = needs_recovery();
    if (!is_due) return pass_on(std::move(is_due));
    if (!*is_due) return locks;
    // Recovery locks what the dead owner's journal names: give ours up meanwhile, or ours would end with
    // them, and look again afterwards.
    locks.release();
    auto recovered = recover(archive_.storage(), archive_.real_path(), archive_.file());
    if (!recovered) return pass_on(std::move(recovered));
  }
  return fail(ErrorCode::Busy, EBUSY,
              archive_.path().string() + ": its journals can't be recovered just now");
}

Result<bool> Transaction::needs_recovery() const {
  auto reports = recover(archive_.storage(), archive_.real_path(), archive_.file(),
                         {.is_dry_run = true, .is_forced = false});
  if (!reports) return pass_on(std::move(reports));
  for (const JournalReport& report : *reports) {
    if (report.state == JournalState::Damaged) {
      return fail(ErrorCode::ArchiveChanged, EIO,
                  fmt::format("{}: {}: nothing is written before `stfs recover {}` has settled it",
                              report.path.string(), report.explanation, archive_.path().string()));
    }
  }
  return std::ranges::any_of(
      *reports, [](const JournalReport& report) { return report.state == JournalState::Committed; });
}

void Transaction::apply_failed(const Error& why, std::vector<JournalRange> ranges) {
  archive_.stop_writing(
      Error{why.code, why.errno_value,
            fmt::format("{}; the change is committed in {} and shows in this mount; the archive "
                        "takes no more writes until `stfs recover {}` has finished it",
                        why.message, journal_->path().string(), archive_.path().string())});
  archive_.overlay({journal_->take_file(), std::move(ranges)});
  stages_.clear();
  journal_.reset();
}

Result<void> Transaction::check_sizes() const {
  for (const auto& [position, stage] : stages_) {
    if (stage->is_whole()) continue;
    const Tensor tensor = archive_.tensors()[position];
    return fail(ErrorCode::WrongSize, EINVAL,
                fmt::format("tensor \"{}\": {} bytes came, {} {} needs {}", tensor.name, stage->size_bytes(),
                            name_of(tensor.dtype), shape_text(tensor.shape), tensor.data.size_bytes));
  }
  return {};
}

Result<void> Transaction::check_archive(const CommitOptions& options) const {
  auto change = archive_.check_for_change();
  if (!change) return pass_on(std::move(change));
  const std::string path = archive_.path().string();
  if (change->is_replaced) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                path + ": the archive was replaced or deleted while it was open; mount it again");
  }
  if (change->is_broken) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                path + ": somebody else has changed the archive's header; mount it again");
  }
  auto status = archive_.file().status();
  if (!status) return pass_on(std::move(status));
  if (status->identity.size_bytes != archive_.stamp().size_bytes) {
    return fail(ErrorCode::ArchiveCut, EIO,
                fmt::format("{}: its size was {} bytes and is {} now", path, archive_.stamp().size_bytes,
                            status->identity.size_bytes));
  }
  if (!change->is_touched) return {};
  if (options.on_foreign_change) options.on_foreign_change();
  return archive_.adopt_identity();
}

}  // namespace stfs
