#include "core/commit/commit_protocol.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/name_hash.h"
#include "core/base/shell_word.h"
#include "core/base/wall_clock.h"
#include "core/commit/block_evidence.h"
#include "core/commit/edit_space.h"
#include "core/journal/file_replacement.h"
#include "core/journal/group_record.h"
#include "core/journal/journal_apply.h"
#include "core/journal/journal_blocks.h"
#include "core/storage/writeback.h"

namespace stfs {
namespace {

// Smaller journals are closed at once.
constexpr std::uint64_t kSlowCloseBytes = 16 << 20;

/// The bytes of the archive that were written and may still wait for the disk. Limits their number.
class PiecesOnTheWay {
 public:
  /// Notes written bytes, in ascending order.
  /// @param has_company  other commits run beside this one. Without them, this commit is faster with fewer
  ///                     waits.
  Result<void> add(File& archive, ByteRange piece, bool has_company) {
    newer_ = newer_.empty() ? piece : ByteRange{newer_.offset, piece.end() - newer_.offset};
    if (newer_.size_bytes < (has_company ? Writeback::kWindowBytes : kManyBytes)) return {};
    auto finished = older_.empty() ? Result<void>{} : archive.finish_writeback(older_);
    older_ = std::exchange(newer_, {});
    return finished;
  }

 private:
  static constexpr std::uint64_t kManyBytes = 32 << 20;
  ByteRange older_;
  ByteRange newer_;
};

/// Returns a number above the numbers of all earlier commits of the archive. Their numbers came from the same
/// clock, or from the archive's mtime if it was ahead of the clock. `last` covers earlier commits of this
/// process.
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

/// Returns an old place of bytes with their present place.
JournalRange moved_to(ByteRange old_place, std::uint64_t to) {
  return {.archive = old_place, .journal_offset = to, .new_hashes = {}, .old_hashes = {}};
}

}  // namespace

void CommitProtocol::add(Transaction& transaction, const CommitOptions& options,
                         const Transaction::LockOf& lock_of) {
  parts_.push_back({.transaction = &transaction,
                    .options = &options,
                    .lock_of = &lock_of,
                    .plan = {},
                    .locks = {},
                    .readers_kept_out = {},
                    .reserved = {},
                    .readers = {},
                    .lends = false,
                    .has_company = false,
                    .index = {},
                    .prepared_index = {},
                    .moves = {},
                    .moves_after = {},
                    .stopped = {}});
}

Durability CommitProtocol::Part::durability() const {
  return plan.after() ? Durability::Power : archive().durability(options->durability);
}

Result<void> CommitProtocol::commit() {
  return guard_memory([this] { return commit_unguarded(); });
}

Result<void> CommitProtocol::commit_unguarded() {
  std::ranges::sort(parts_, {}, [](const Part& part) { return part.archive().real_path(); });
  std::vector<Part*> changed;
  for (Part& part : parts_) {
    RETURN_IF_ERROR(prepare(part));
    if (!part.plan.is_empty()) changed.push_back(&part);
  }
  RETURN_IF_ERROR(execute(changed));
  for (Part& part : parts_) end_stages(part);
  return {};
}

Result<void> CommitProtocol::execute(const std::vector<Part*>& parts) {
  if (parts.empty()) return {};
  // The part that replaces the index is the last one: before that, the old index names all archives. The new
  // index names the archive of that part (ModelEdit::begin_index()).
  std::vector<Part*> in_order = parts;
  std::stable_partition(in_order.begin(), in_order.end(), [](const Part* part) { return !part->index; });
  Archive& first = in_order.back()->index ? in_order.back()->archive() : parts.front()->archive();
  const std::filesystem::path directory = first.real_path().parent_path();
  const Durability durability = parts.front()->durability();
  std::optional<GroupRecord> group_record;
  if (parts.size() > 1) {
    std::vector<const File*> others;
    for (const Part* part : parts) {
      const std::filesystem::path& path = part->archive().real_path();
      if (&part->archive() != &first) others.push_back(&part->archive().file());
      if (path.parent_path() == directory) continue;
      return fail(ErrorCode::InvalidArgument, EOPNOTSUPP,
                  fmt::format("{} and {} lie in different directories: one transaction cannot change both",
                              first.real_path().string(), path.string()));
    }
    auto created = GroupRecord::create(first.storage(), first.real_path(), first.file(), others);
    RETURN_IF_ERROR(created);
    group_record = std::move(*created);
  }

  // Seal all journals before any is published: a full disk fails here, before any file has a name.
  std::vector<std::string> journals;
  Part& only = *parts.front();
  only.lends = parts.size() == 1 && only.options->lend_turn && !only.plan.after() &&
               !only.transaction->patches_ && !only.journal().is_in_memory() &&
               only.archive().tells_writes_apart();
  for (Part* part : parts) {
    RETURN_IF_ERROR(seal(*part, group_record ? group_record->name() : ""));
    if (group_record) journals.push_back(part->journal().path().filename().string());
  }
  if (group_record) {
    RETURN_IF_ERROR(group_record->seal(journals, durability));
  }

  // From here on, all code that needs memory has a guard: the commit may have happened.
  Result<void> done;
  std::size_t published = 0;
  while (done && published < parts.size()) {
    done = publish(*parts[published]);
    if (done) ++published;
  }
  if (done && group_record) done = group_record->publish(durability);
  if (!done) {
    for (std::size_t at = 0; at < published; ++at) withdraw(*parts[at], done.error());
    if (group_record && done.error().code != ErrorCode::CommitUnknown) group_record->give_up();
    return done;
  }

  for (Part* part : parts) part->reserved.keep();
  for (Part* part : in_order) {
    // After a failure of another archive the old index stays: the new index may not name that archive, and
    // then no process would find its journal.
    auto finished = apply(*part, part->index && !done ? &done.error() : nullptr);
    if (finished) finished = retire(*part);
    if (finished) end_stages(*part);
    if (!finished && done) done = std::move(finished);
  }
  // The locks end here, not earlier: a process that finds an archive free then finds the whole group, and its
  // sync state.
  for (Part* part : parts) part->locks.release();
  // After a failure the group record stays, because it commits the journals that are left. A group record
  // without journals has no meaning, so a failed removal is no error: recovery removes it.
  if (done && group_record) static_cast<void>(group_record->remove());
  return done;
}

Result<void> CommitProtocol::prepare(Part& part) {
  Archive& archive = part.archive();
  Transaction& transaction = *part.transaction;
  // A commit beside a large one does not resume writing, so that the large one sees that writing was stopped.
  if (auto resumed = part.options->is_beside ? Result<void>{} : archive.resume_writing(); !resumed)
    return resumed;
  RETURN_IF_ERROR(archive.check_writable());
  if (transaction.journal_ && transaction.journal_->spoiled())
    return tl::unexpected(*transaction.journal_->spoiled());
  RETURN_IF_ERROR(transaction.check_sizes());
  RETURN_IF_ERROR(transaction.check_places());
  auto plan = CommitProtocol::plan(part);
  RETURN_IF_ERROR(plan);
  part.plan = std::move(*plan);
  if (part.plan.is_empty()) return {};
  auto locks = transaction.patches_ ? Result<ArchiveLocks>(std::move(transaction.patches_->locks))
               : part.plan.after()  ? lock_for_edit(archive, *part.options)
                                    : lock_for_commit(archive, part.plan.locks(), *part.options);
  RETURN_IF_ERROR(locks);
  part.locks = std::move(*locks);
  RETURN_IF_ERROR(check_archive(archive, *part.options));
  const auto layout = transaction.layout();
  if (layout != nullptr && layout->needs_all_readers_out && part.options->uses_locks) {
    auto kept_out = ReadersKeptOut::of(archive);
    RETURN_IF_ERROR(kept_out);
    part.readers_kept_out = std::move(*kept_out);
  }
  if (layout != nullptr) {
    auto reserved = ReservedSpace::of(archive, *layout);
    RETURN_IF_ERROR(reserved);
    part.reserved = std::move(*reserved);
    RETURN_IF_ERROR(copy_before(part, *layout));
  }
  if (part.index) {
    const std::filesystem::path path = archive.real_path().parent_path() / part.index->name;
    RETURN_IF_ERROR(archive.storage().check_replaceable(path));
    auto prepared = prepare_index(archive.storage(), archive.real_path(), archive.file(),
                                  part.journal().file(), *part.index);
    RETURN_IF_ERROR(prepared);
    part.prepared_index = std::move(*prepared);
  }
  RETURN_IF_ERROR(part.plan.complete_blocks(archive.file(), part.journal()));
  // Allocate now the memory that a failure after the commit point will need.
  archive.overlay().reserve();
  part.readers.make_ready();
  return {};
}

Result<void> CommitProtocol::copy_before(const Part& part, const EditLayout& layout) {
  if (layout.copies.empty()) return {};
  Archive& archive = part.archive();
  auto copied = copy_to_free_space(archive.file(), layout.copies, part.options->on_copy);
  if (!copied) return tl::unexpected(std::move(copied).error().within(archive.path().string()));
  // No journal has these bytes: they must be on the disk before the header that names them.
  return archive.sync();
}

Result<CommitPlan> CommitProtocol::plan(Part& part) {
  const Archive& archive = part.archive();
  Transaction& transaction = *part.transaction;
  const auto of_stage = [](const Staging* stage) { return stage->target().offset; };
  std::vector<Staging*> stages;
  part.index = transaction.index_;
  if (transaction.patches_) {
    if (!transaction.has_patches()) return CommitPlan();
    for (const TensorId tensor : transaction.patches_->tensors) part.readers.add((*part.lock_of)(tensor));
    return CommitPlan::make_patches(archive.stamp(), std::move(transaction.patches_->ranges));
  }
  if (transaction.edit_) {
    const Transaction::PendingEdit& edit = *transaction.edit_;
    const ArchiveShape after{.size_bytes = edit.layout->size_bytes,
                             .header_size_bytes = edit.layout->content->size_bytes,
                             .header_hash = edit.layout->content->hash};
    std::vector<CommitPlan::Move> moves;
    stages.push_back(edit.header.get());
    for (std::size_t at = 0; at < edit.placed.size(); ++at) {
      stages.push_back(edit.placed[at].get());
      const EditLayout::Placed& placed = edit.layout->placed[at];
      if (!placed.moved_from) continue;
      moves.push_back({*placed.moved_from, edit.placed[at].get()});
      part.readers.add((*part.lock_of)(*edit.edit.tensors[placed.tensor].from));
      const ByteRange old_place{*placed.moved_from, placed.file_range.size_bytes};
      part.moves.in_journal.push_back(
          moved_to(old_place, edit.placed[at]->journal_offset(placed.file_range.offset)));
      part.moves_after.in_archive.push_back(moved_to(old_place, placed.file_range.offset));
    }
    part.moves.journal = &part.journal().file();
    for (const EditLayout::Copy& copy : edit.layout->copies) {
      for (Archive::Moves* const shown : {&part.moves, &part.moves_after})
        shown->in_archive.push_back(moved_to({copy.from, copy.size_bytes}, copy.to));
    }
    for (const std::uint32_t tensor : edit.layout->copied)
      part.readers.add((*part.lock_of)(*edit.edit.tensors[tensor].from));
    std::ranges::sort(stages, {}, of_stage);
    return CommitPlan::make_edit(archive.stamp(), after, archive.file().most_range_bytes(), stages, moves);
  }
  for (const auto& [tensor, stage] : transaction.stages_) {
    if (!stage->is_dirty()) continue;
    stages.push_back(stage.get());
    part.readers.add((*part.lock_of)(tensor));
  }
  if (stages.empty()) return CommitPlan();
  std::ranges::sort(stages, {}, of_stage);
  return CommitPlan::make(archive.stamp(), archive.file().most_range_bytes(), stages);
}

Result<void> CommitProtocol::seal(Part& part, std::string group_record) {
  Archive& archive = part.archive();
  Journal& journal = part.journal();
  const CommitOptions& options = *part.options;
  const bool goes_through_lanes = journal.is_in_memory() && group_record.empty();
  // This commit takes long. Settle the other journals first, because nothing else settles them during this
  // commit.
  if (!goes_through_lanes && options.settle_others) options.settle_others();
  const std::filesystem::path& path = goes_through_lanes ? archive.lane_journal().path() : journal.path();
  part.stopped = {
      ErrorCode::System, EIO,
      fmt::format(
          "the change is committed in {} and this mount shows it; the archive takes no more writes until "
          "`stfs recover {}` has finished it",
          path.empty() ? "a journal" : path.string(), shell_word(archive.path().native()))};
  // Recovery will compare the archive's blocks with this commit's old and new blocks. After a power loss, an
  // older state of a block would be neither. A patch needs the old content around its bytes also.
  const bool are_blocks_asked = goes_through_lanes || part.plan.after() || part.transaction->patches_ ||
                                part.plan.before().birth_ns == 0;
  if (are_blocks_asked && part.durability() == Durability::Power) {
    RETURN_IF_ERROR(archive.sync_what_others_wrote());
  }
  JournalRecord record{.id = {},
                       .archive = part.plan.before(),
                       .sequence = next_sequence(archive.identity().mtime_ns),
                       .owner_pid = 0,
                       .group_record = std::move(group_record),
                       .boot = {},
                       .after = part.plan.after(),
                       .index = part.index,
                       .ranges = part.plan.operations()};
  RETURN_IF_ERROR(share_old_blocks(record, archive.file(), journal));
  const std::uint64_t total = part.plan.size_bytes();
  std::uint64_t hashed = 0;
  const auto count = [&](std::uint64_t bytes) {
    hashed += bytes;
    if (options.on_progress) options.on_progress(hashed / 2, total);  // the first half
    lend(part);
  };
  JournalRecord sizes;  // the archive's sizes, as blocks_with_old_content() needs them
  sizes.archive = record.archive;
  sizes.after = record.after;
  const auto hash = [&](JournalRange& range) {
    const std::uint64_t old_bytes = blocks_with_old_content(sizes, range.archive).size_bytes;
    return hash_range(range, old_bytes, archive.file(), journal.file(), part.transaction->stages_, count);
  };
  const auto around_sync = [&](const std::function<Result<void>()>& sync) -> Result<void> {
    if (!part.lends) return sync();
    Result<void> synced;
    lend(part, [&] { synced = guard_memory(sync); });
    return synced;
  };
  auto done = journal.seal(std::move(record), part.durability(), hash, &archive.lane_journal(), around_sync);
  if (!done && done.error().code == ErrorCode::CommitUnknown)
    archive.stop_writing(done.error(), journal.path());
  // A commit that ran during this one may have stopped all writing.
  return done && part.lends ? archive.check_writable() : done;
}

void CommitProtocol::lend(Part& part, const std::function<void()>& work) {
  if (part.lends && part.options->lend_turn(work)) part.has_company = true;
}

Result<void> CommitProtocol::lend_while_applied(Part& part, bool& is_known) {
  Archive& archive = part.archive();
  // Commits beside this one must not take our writes for foreign writes. We must not take foreign writes for
  // ours.
  if (is_known) {
    const auto now = archive.file().status();
    RETURN_IF_ERROR(now);
    RETURN_IF_ERROR(archive.adopt_own_change(now->identity));
  }
  lend(part);
  is_known = archive.is_as_known();
  // A sync that failed in between may have lost bytes that we have written: recovery writes them again.
  return archive.check_writable();
}

Result<void> CommitProtocol::publish(Part& part) {
  auto done = part.journal().publish(part.durability());
  if (!done && done.error().code == ErrorCode::CommitUnknown)
    part.archive().stop_writing(done.error(), part.journal().path());
  return done;
}

void CommitProtocol::withdraw(Part& part, const Error& why) {
  // If the group record may exist after a crash, its journals must exist also.
  if (why.code == ErrorCode::CommitUnknown) {
    part.archive().stop_writing(why, part.journal().path());
  } else {
    part.journal().take_back(part.durability());
  }
}

Result<void> CommitProtocol::apply(Part& part, const Error* others_failure) {
  Archive& archive = part.archive();
  const CommitOptions& options = *part.options;
  const std::vector<JournalRange>& operations = part.plan.operations();
  const std::uint64_t total = part.plan.size_bytes();
  std::uint64_t done = 0;
  // Other processes may write to other blocks during the commit. If we took these writes for ours, readers
  // here would never see them. Only writes at the moment of our own writes can't be told apart. After an edit
  // the archive has another header, and the next opening shows it.
  bool is_known = !part.plan.after() && archive.is_as_known();
  auto applied = guard_memory([&]() -> Result<void> {
    // Writing waits for the disk when too many pages are dirty. Readers do not wait.
    part.readers.during([&] {
      if (part.plan.after()) return archive.show_moved(std::move(part.moves));
      archive.overlay().show_while_applied({&part.journal().file(), operations});
    });
    PiecesOnTheWay on_the_way;
    const auto on_written = [&](ByteRange piece) -> Result<void> {
      done += piece.size_bytes;
      if (options.on_progress) options.on_progress(total / 2 + done / 2, total);
      if (!part.lends) return {};
      // A commit that runs beside this one syncs the archive. That sync must not wait for all bytes that we
      // have written.
      if (part.durability() == Durability::Power) {
        RETURN_IF_ERROR(on_the_way.add(archive.file(), piece, part.has_company));
      }
      return lend_while_applied(part, is_known);
    };
    if (others_failure != nullptr) return tl::unexpected(*others_failure);
    return apply_ranges(archive.file(), part.journal().file(), operations, on_written, part.plan.after());
  });
  const auto written = archive.file().status();
  if (!applied) return stop(std::move(applied).error(), part);
  if (!written) return stop(written.error(), part);
  part.readers.during([&] {
    if (part.plan.after()) return archive.show_moved(std::move(part.moves_after));
    archive.overlay().end_applied(&part.journal().file());
  });
  auto settled = guard_memory([&]() -> Result<void> {
    if (part.durability() == Durability::Power) {
      RETURN_IF_ERROR(archive.sync());
    }
    if (part.index) {
      RETURN_IF_ERROR(replace_index(archive.storage(), part.journal().path(), part.journal().file(),
                                    *part.index, RightOf::Process, part.durability(),
                                    std::move(part.prepared_index)));
    }
    return is_known ? archive.adopt_own_change(written->identity) : Result<void>{};
  });
  return settled ? settled : stop(std::move(settled).error(), part);
}

Result<void> CommitProtocol::retire(Part& part) {
  // Recovery would apply a journal that stays once more, over newer commits.
  auto retired = guard_memory([&] { return part.journal().retire(part.durability()); });
  if (!retired) return stop(std::move(retired).error(), part);
  free_fillers(part);
  adopt_edit(part);
  if (!part.plan.after() && !part.transaction->patches_ &&
      part.plan.size_bytes() <= kLaneBlocks * kBlockBytes && !part.journal().is_in_memory())
    part.archive().lane_journal().note_small_commit();
  return {};
}

void CommitProtocol::free_fillers(Part& part) {
  const auto layout = part.transaction->layout();
  if (layout == nullptr) return;
  for (const ByteRange range : layout->given_back) {
    static_cast<void>(part.archive().file().punch(whole_blocks_in(range)));
  }
}

void CommitProtocol::adopt_edit(Part& part) {
  const auto layout = part.transaction->layout();
  if (layout == nullptr) return;
  static_cast<void>(guard_memory([&]() -> Result<void> {
    std::vector<Archive::KeptTensor> kept;
    kept.reserve(part.transaction->edit_->edit.tensors.size());
    for (const EditedTensor& tensor : part.transaction->edit_->edit.tensors) {
      if (tensor.from) kept.push_back({tensor.name, *tensor.from});
    }
    return part.archive().adopt_edit(layout->content, kept);
  }));
}

Result<void> CommitProtocol::stop(Error why, Part& part) {
  Archive& archive = part.archive();
  Transaction& transaction = *part.transaction;
  // stop() must not need memory before its last step.
  part.stopped.code = why.code;
  part.stopped.errno_value = why.errno_value;
  std::filesystem::path journal = transaction.journal_->take_path();
  if (part.options->before_stages_end) part.options->before_stages_end();
  // Readers switch from the temporary view of the journal to the lasting one.
  const File* const applied = &transaction.journal_->file();
  part.readers.during([&] {
    const std::optional<ArchiveShape> after = part.plan.after();
    archive.overlay().add({transaction.journal_->give_up(), std::move(part.plan).take_operations(), after});
    archive.overlay().end_applied(applied);
    if (after) archive.end_move();
  });
  archive.stop_writing(std::move(part.stopped), std::move(journal));
  transaction.clear();
  transaction.journal_.reset();
  // Add to the message that the change is not undone. Without memory the caller gets only the reason.
  static_cast<void>(guard_memory([&] {
    auto stopped = archive.check_writable();
    if (!stopped) why.message = fmt::format("{}; {}", why.message, stopped.error().message);
    return stopped;
  }));
  return tl::unexpected(std::move(why));
}

void CommitProtocol::end_stages(Part& part) {
  Transaction& transaction = *part.transaction;
  if (transaction.is_empty()) return;
  if (part.options->before_stages_end) part.options->before_stages_end();
  transaction.clear();
  if (transaction.journal_ && transaction.journal_->size_bytes() >= kSlowCloseBytes) {
    while (auto file = transaction.journal_->take_file()) part.archive().discard(std::move(file));
  }
  transaction.journal_.reset();
}

}  // namespace stfs
