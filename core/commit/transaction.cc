// Implements the steps of a commit, as transaction.h numbers them.
#include "core/commit/transaction.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "core/commit/block_plan.h"
#include "core/journal/journal_apply.h"
#include "core/journal/recovery.h"

namespace stfs {
namespace {

// From this size on, starting a thread costs much less than it saves.
constexpr std::uint64_t kTwoThreadsFromBytes = 16 << 20;

// Smaller journals are closed at once.
constexpr std::uint64_t kSlowCloseBytes = 16 << 20;

/// Returns a larger number than any earlier commit of the archive has. Their numbers came from the same
/// clock, or from the archive's mtime if it was ahead of the clock. `last` covers this process's own commits.
std::uint64_t next_sequence(std::int64_t archive_mtime_ns) {
  static std::atomic<std::uint64_t> last = 0;
  const auto least = static_cast<std::uint64_t>(std::max(wall_clock_ns(Clock::Fine), archive_mtime_ns + 1));
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

void ReadersOut::make_ready() {
  std::sort(locks_.begin(), locks_.end());
  locks_.erase(std::unique(locks_.begin(), locks_.end()), locks_.end());
  held_.reserve(locks_.size());
}

void ReadersOut::take() {
  for (ReaderWriterLock* lock : locks_) held_.emplace_back(*lock);
}

Result<Staging*> Transaction::stage(std::uint32_t tensor) {
  return guard_memory([&] { return begin_stage(tensor); });
}

Result<Staging*> Transaction::begin_stage(std::uint32_t tensor) {
  if (auto opened = archive_.open_for_writing(); !opened) return pass_on(std::move(opened));
  if (!journal_) {
    const bool is_kept = archive_.standing_journal().is_ready();
    auto journal = Journal::create(archive_.storage(), archive_.real_path(),
                                   is_kept ? Journal::Place::Memory : Journal::Place::Disk);
    if (!journal) return pass_on(std::move(journal));
    journal_ = std::move(*journal);
  }
  const auto found = stages_.find(tensor);
  if (found != stages_.end()) return found->second.get();
  auto stage = std::make_unique<Staging>(*journal_, archive_.file_range(archive_.tensors()[tensor].data));
  return stages_.emplace(tensor, std::move(stage)).first->second.get();
}

void Transaction::drop(std::uint32_t tensor) {
  stages_.erase(tensor);
  // An empty journal is no loss, and a journal that a failed sync has spoiled must not outlive its stages.
  if (stages_.empty()) journal_.reset();
}

bool Transaction::is_dirty() const {
  return std::ranges::any_of(stages_, [](const auto& entry) { return entry.second->is_dirty(); });
}

Result<void> Transaction::commit(const CommitOptions& options, const LockOf& lock_of) {
  return guard_memory([&]() -> Result<void> {
    auto prepared = prepare(options, lock_of);
    if (!prepared) return pass_on(std::move(prepared));
    if (auto sealed = seal(*prepared, options); !sealed) return sealed;
    if (auto published = publish(*prepared, options); !published) return published;
    return finish(std::move(*prepared), options);
  });
}

Result<Transaction::Prepared> Transaction::prepare(const CommitOptions& options, const LockOf& lock_of) {
  if (auto resumed = archive_.resume_writing(); !resumed) return pass_on(std::move(resumed));
  if (auto writable = archive_.check_writable(); !writable) return pass_on(std::move(writable));
  if (journal_ && journal_->spoiled()) return tl::unexpected(*journal_->spoiled());
  if (auto sizes = check_sizes(); !sizes) return pass_on(std::move(sizes));
  Prepared prepared;
  std::vector<Staging*> stages;
  std::vector<ByteRange> touched;
  for (const auto& [tensor, stage] : stages_) {
    auto pieces = stage->pieces();
    if (!pieces) return pass_on(std::move(pieces));
    if (pieces->empty()) continue;
    stages.push_back(stage.get());
    touched.insert(touched.end(), pieces->begin(), pieces->end());
    prepared.readers.add(lock_of(tensor));
  }
  if (stages.empty()) return prepared;

  auto taken = lock(touched, options);
  if (!taken) return pass_on(std::move(taken));
  prepared.locks = std::move(*taken);
  if (auto same = check_archive(options); !same) return pass_on(std::move(same));
  auto ranges = plan_blocks(archive_.file(), archive_.stamp().size_bytes, *journal_, stages);
  if (!ranges) return pass_on(std::move(ranges));
  prepared.ranges = std::move(*ranges);
  // Allocate now what a failure after the commit point will need.
  archive_.reserve_overlay();
  prepared.readers.make_ready();
  return prepared;
}

Result<void> Transaction::seal(const Prepared& prepared, const CommitOptions& options,
                               std::string coordinator) {
  if (prepared.ranges.empty()) return {};
  const bool goes_through_standing = journal_->is_in_memory() && coordinator.empty();
  // This commit takes long. Settle first: meanwhile nobody settles the other journals.
  if (!goes_through_standing && options.settle_others) options.settle_others();
  const std::filesystem::path& journal =
      goes_through_standing ? archive_.standing_journal().path() : journal_->path();
  stopped_ = {
      ErrorCode::System, EIO,
      fmt::format("the change is committed in {} and shows here; the archive takes no more writes until "
                  "`stfs recover {}` has finished it",
                  journal.empty() ? "a journal" : journal.string(), archive_.path().string())};
  // Recovery will compare the archive's blocks with this commit's old and new ones. An older state that a
  // power loss brings back would be neither.
  const bool are_blocks_asked = goes_through_standing || archive_.stamp().birth_ns == 0;
  if (are_blocks_asked && archive_.durability(options.durability) == Durability::Power) {
    if (auto synced = archive_.sync_what_others_wrote(); !synced) return synced;
  }
  JournalRecord record{.id = {},
                       .archive = archive_.stamp(),
                       .sequence = next_sequence(archive_.identity().mtime_ns),
                       .owner_pid = 0,
                       .coordinator = std::move(coordinator),
                       .boot = {},
                       .ranges = prepared.ranges};
  if (auto shared = share_old(record.ranges); !shared) return shared;
  const std::uint64_t total = total_bytes(prepared.ranges);
  std::uint64_t hashed = 0;
  const auto hash_range = [&](JournalRange& range) {
    return hash(range, [&](std::uint64_t bytes) {
      hashed += bytes;
      if (options.on_progress) options.on_progress(hashed / 2, total);  // the first half
    });
  };
  auto done = journal_->seal(std::move(record), archive_.durability(options.durability), hash_range,
                             &archive_.standing_journal());
  if (!done && done.error().code == ErrorCode::CommitUnknown)
    archive_.stop_writing(done.error(), journal_->path());
  return done;
}

Result<void> Transaction::publish(const Prepared& prepared, const CommitOptions& options) {
  if (prepared.ranges.empty()) return {};
  auto done = journal_->publish(archive_.durability(options.durability));
  if (!done && done.error().code == ErrorCode::CommitUnknown)
    archive_.stop_writing(done.error(), journal_->path());
  return done;
}

Result<void> Transaction::finish(Prepared prepared, const CommitOptions& options) {
  if (!prepared.ranges.empty()) {
    if (auto applied = apply(prepared, options); !applied) return applied;
  }
  if (options.before_stages_end) options.before_stages_end();
  stages_.clear();
  if (journal_ && journal_->size_bytes() >= kSlowCloseBytes) {
    while (auto file = journal_->take_file()) archive_.discard(std::move(file));
  }
  journal_.reset();
  return {};
}

Result<void> Transaction::apply(Prepared& prepared, const CommitOptions& options) {
  std::vector<JournalRange>& ranges = prepared.ranges;
  ReadersOut& readers = prepared.readers;
  const std::uint64_t total = total_bytes(ranges);
  std::uint64_t done = 0;
  // Others write to other blocks meanwhile. Their writes must not count as ours, or readers here would never
  // see them. Only writes that come during our own writes can't be told apart.
  const bool is_known = archive_.is_as_known();
  auto applied = guard_memory([&] {
    // Writing waits for the disk when too many pages are dirty. Readers do not wait.
    readers.during([&] { archive_.show_while_applied({&journal_->file(), ranges}); });
    return apply_ranges(archive_.file(), journal_->file(), ranges, [&](std::uint64_t bytes) {
      done += bytes;
      if (options.on_progress) options.on_progress(total / 2 + done / 2, total);
    });
  });
  const auto written = archive_.file().status();
  if (!applied) return stop(std::move(applied).error(), prepared, options);
  if (!written) return stop(written.error(), prepared, options);
  readers.during([&] { archive_.show_while_applied({}); });
  auto settled = guard_memory([&]() -> Result<void> {
    if (archive_.durability(options.durability) == Durability::Power) {
      if (auto synced = archive_.sync(); !synced) return synced;
    }
    if (is_known) {
      if (auto adopted = archive_.adopt_own_change(written->identity); !adopted) return adopted;
    }
    // Recovery would apply a journal that stays again, over newer commits.
    return journal_->retire(archive_.durability(options.durability));
  });
  if (!settled) return stop(std::move(settled).error(), prepared, options);
  if (total <= kLaneBlocks * kBlockBytes && !journal_->is_in_memory())
    archive_.standing_journal().note_small_commit();
  return {};
}

Result<void> Transaction::share_old(std::vector<JournalRange>& ranges) const {
  std::vector<JournalRange> shared;
  shared.reserve(ranges.size() + 1);
  bool can_share = true;
  for (JournalRange& range : ranges) {
    // The archive may end in a partial block.
    const std::uint64_t whole_bytes = round_down_to_block(range.archive.size_bytes);
    if (can_share && whole_bytes >= kCloneFromBytes) {
      auto region = journal_->share(archive_.file(), {range.archive.offset, whole_bytes});
      if (!region) return pass_on(std::move(region));
      can_share = region->has_value();
      if (can_share) {
        shared.push_back({.archive = {range.archive.offset, whole_bytes},
                          .journal_offset = range.journal_offset,
                          .old_offset = **region,
                          .new_hashes = {},
                          .old_hashes = {}});
        range.archive = {range.archive.offset + whole_bytes, range.archive.size_bytes - whole_bytes};
        range.journal_offset += whole_bytes;
      }
    }
    if (!range.archive.empty()) shared.push_back(std::move(range));
  }
  ranges = std::move(shared);
  return {};
}

Result<void> Transaction::hash(JournalRange& range, const OnBytes& on_bytes) const {
  const std::uint64_t blocks = round_up_to_block(range.archive.size_bytes) / kBlockBytes;
  range.new_hashes.resize(blocks);
  if (range.old_offset != 0) return hash_new(range, on_bytes);
  range.old_hashes.resize(blocks);
  // Another thread hashes the second half of the old blocks.
  const std::uint64_t half =
      range.archive.size_bytes < kTwoThreadsFromBytes ? 0 : round_down_to_block(range.archive.size_bytes / 2);
  const auto hash_old = [&](std::uint64_t begin, std::uint64_t end) {
    const std::span place = std::span(range.old_hashes).subspan(begin / kBlockBytes);
    return guard_memory([&] {
      return hash_blocks(archive_.file(), {range.archive.offset + begin, end - begin}, place);
    });
  };
  Result<void> in_back;
  std::optional<std::thread> other;
  const auto hash_back = [&] { in_back = hash_old(half, range.archive.size_bytes); };
  if (half > 0) {
    try {
      other.emplace(hash_back);
    } catch (const std::system_error&) {  // no thread: hash one half after the other
    }
  }
  auto hashed = hash_new(range, on_bytes);
  if (hashed && half > 0) hashed = hash_old(0, half);
  if (other) {
    other->join();
  } else if (hashed) {
    hash_back();
  }
  return hashed ? in_back : hashed;
}

Result<void> Transaction::hash_new(JournalRange& range, const OnBytes& on_bytes) const {
  const auto place_of = [&](std::uint64_t offset) {
    return std::span(range.new_hashes).subspan((offset - range.archive.offset) / kBlockBytes);
  };
  std::uint64_t done = range.archive.offset;
  const auto hash_up_to = [&](std::uint64_t end) {
    const ByteRange unknown = {range.journal_offset + (done - range.archive.offset), end - done};
    const auto place = place_of(done);
    done = end;
    return hash_blocks(journal_->file(), unknown, place, on_bytes);
  };
  // If the range's blocks lie in a stage's region in the same order, the stage may know their hashes.
  for (const auto& [tensor, stage] : stages_) {
    if (stage->journal_offset(range.archive.offset) != range.journal_offset) continue;
    while (const auto run = stage->hashes().first_run({done, range.archive.end() - done})) {
      if (auto hashed = hash_up_to(run->offset); !hashed) return hashed;
      const auto place = place_of(run->offset).first(run->size_bytes / kBlockBytes);
      if (auto read = stage->hashes().read(*run, place); !read) return read;
      if (on_bytes) on_bytes(run->size_bytes);
      done = run->end();
    }
  }
  return hash_up_to(range.archive.end());
}

Result<ArchiveLocks> Transaction::lock(const std::vector<ByteRange>& ranges, const CommitOptions& options) {
  constexpr std::chrono::milliseconds kPause{2};
  const auto deadline = std::chrono::steady_clock::now() + options.lock_patience;
  StandingJournal& standing = archive_.standing_journal();
  bool has_recovered = false;
  ArchiveLocks locks;
  bool is_locked = false;
  bool has_seen_others = false;
  // The process that blocks us may itself wait for us to settle, in this archive or in another.
  bool owes_nothing = false;
  const auto settle_all = [&]() -> Result<void> {
    if (std::exchange(owes_nothing, true)) return {};
    if (options.settle_others) options.settle_others();
    return standing.settle(archive_.durability(options.durability));
  };
  for (;;) {
    if (options.uses_locks && !is_locked) {
      const auto patience = owes_nothing ? options.lock_patience : std::chrono::milliseconds(0);
      auto taken =
          ArchiveLocks::for_patch(archive_.file(), archive_.path(), ranges, patience, options.has_waited);
      if (!taken && taken.error().code == ErrorCode::Busy && !owes_nothing) {
        if (auto settled = settle_all(); !settled) return pass_on(std::move(settled));
        continue;
      }
      if (!taken) return taken;
      locks = std::move(*taken);
      is_locked = true;
    }
    if (!has_seen_others) {
      if (auto seen = archive_.file().refresh(ranges); !seen) return pass_on(std::move(seen));
      has_seen_others = true;
    }
    auto obstacle = find_obstacle(archive_.storage(), archive_.real_path(), archive_.file(), ranges,
                                  standing.path(), archive_.left_void());
    if (!obstacle) return pass_on(std::move(obstacle));
    if (*obstacle == Obstacle::None) return locks;
    if (*obstacle == Obstacle::Unsettled) {
      if (auto settled = settle_all(); !settled) return pass_on(std::move(settled));
      if (std::chrono::steady_clock::now() >= deadline) {
        return fail(ErrorCode::Busy, EBUSY,
                    archive_.path().string() +
                        ": another process has committed to these bytes and has not "
                        "settled its journal");
      }
      std::this_thread::sleep_for(kPause);
      continue;
    }
    // Recover a dead owner's journal even without patience left. If that fails, wait for it until the
    // deadline.
    const bool has_tried = std::exchange(has_recovered, *obstacle == Obstacle::DeadOwner);
    if ((*obstacle == Obstacle::Recovery || has_tried) && std::chrono::steady_clock::now() >= deadline) {
      return fail(ErrorCode::Busy, EBUSY,
                  archive_.path().string() + ": somebody else is recovering its journals");
    }
    if (auto settled = settle_all(); !settled) return pass_on(std::move(settled));
    // Recovery locks the ranges that the journal names. With our locks held it would wait for us, or
    // releasing its locks would release ours.
    locks.release();
    is_locked = has_seen_others = false;
    if (*obstacle == Obstacle::DeadOwner) {
      auto recovered = recover(archive_.storage(), archive_.real_path(), archive_.file());
      if (!recovered && recovered.error().code != ErrorCode::Busy) return pass_on(std::move(recovered));
      if (recovered) archive_.note_left_void(*recovered);
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
}

Result<void> Transaction::stop(Error why, Prepared& prepared, const CommitOptions& options) {
  // stop() must not need memory up to its last step.
  stopped_.code = why.code;
  stopped_.errno_value = why.errno_value;
  std::filesystem::path journal = journal_->take_path();
  if (options.before_stages_end) options.before_stages_end();
  // Readers switch from the temporary view of the journal to the lasting one.
  prepared.readers.during([&] {
    archive_.overlay({journal_->give_up(), std::move(prepared.ranges)});
    archive_.show_while_applied({});
  });
  archive_.stop_writing(std::move(stopped_), std::move(journal));
  stages_.clear();
  journal_.reset();
  // Tell the caller that the change is not undone. Without memory the caller gets only the reason.
  static_cast<void>(guard_memory([&] {
    auto stopped = archive_.check_writable();
    if (!stopped) why.message = fmt::format("{}; {}", why.message, stopped.error().message);
    return stopped;
  }));
  return tl::unexpected(std::move(why));
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

Result<void> Transaction::check_archive(const CommitOptions& options) {
  auto change = archive_.check_for_change();
  if (!change) return pass_on(std::move(change));
  const std::string path = archive_.path().string();
  if (change->is_replaced) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                path + ": the archive was replaced or deleted while it was open");
  }
  // Journals lie beside one name: a writer that uses another name would not find them.
  if (change->links > 1) {
    return fail(
        ErrorCode::InvalidArgument, EMLINK,
        fmt::format(
            "{}: the archive has {} hard links: a writer who comes by another one would not find this "
            "one's journals, so nothing is written; give it a file of its own (cp --reflink=auto)",
            path, change->links));
  }
  if (change->is_broken) {
    return fail(ErrorCode::ArchiveChanged, ESTALE, path + ": somebody else has changed the archive's header");
  }
  if (change->size_bytes != archive_.stamp().size_bytes) {
    return fail(ErrorCode::ArchiveCut, EIO,
                fmt::format("{}: its size was {} bytes and is {} now", path, archive_.stamp().size_bytes,
                            change->size_bytes));
  }
  if (!change->is_touched) return {};
  auto allowed = options.on_foreign_change ? options.on_foreign_change() : Result<void>{};
  if (auto adopted = archive_.adopt_identity(); !adopted) return adopted;
  return allowed;
}

}  // namespace stfs
