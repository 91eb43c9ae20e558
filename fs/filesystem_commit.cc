// From staged to committed: closes, syncs, and what is left to do behind them (filesystem.h).
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/file_lock.h"
#include "core/transaction.h"
#include "fs/filesystem.h"
#include "fs/log.h"
#include "fs/process.h"

namespace stfs {
namespace {

// Twenty commits of 4 KiB: then a look for changes by others is a small part of what they take.
constexpr std::chrono::milliseconds kTrust{5};

}  // namespace

Result<Stale> Filesystem::flush(OpenFile& file, Owner owner, pid_t closer) {
  PendingContent& content = *file.content;
  const std::scoped_lock lock(content.mutex);
  if (content.failure) return tl::unexpected(*content.failure);
  if (!content.is_dirty()) return Stale{};
  // Others are in the middle of it, through descriptors of their own.
  if (file.is_untouched && !content.is_whole()) return Stale{};
  const bool is_writer = content.is_written_by(owner);
  if (is_writer && is_killed_by_signal(closer)) {
    const Error why{
        ErrorCode::InvalidArgument, EIO,
        fmt::format("{}: rolled back: the writer (pid {}) was killed by a signal before it closed",
                    label_of(content.tensor()), closer)};
    log::warning("{}", why.message);
    content.fail(why);
    return Stale::one(file.ino, file.kind == FileKind::Shared ? Stale::What::Content : Stale::What::Nothing);
  }
  if (content.is_whole()) {
    // A child that inherited the descriptor ends, say: those who write have not closed yet.
    if (!is_writer) return Stale{};
  } else if (!file.opener_has_closed && lives_elsewhere(file.opener, closer)) {
    // `{ head -c 10 A; cat B; } > T`: the shell that opened T closes last, and is told then.
    return Stale{};
  } else if (file.kind == FileKind::Shared) {
    // Everybody sees this content through the page cache: it must not stay cut until the last close.
    content.fail(wrong_size(content));
    return tl::unexpected(*content.failure);
  } else if (!content.writers.empty()) {
    file.opener_has_closed = true;
  }
  if (file.kind == FileKind::Grouped) {
    if (!content.is_whole()) return tl::unexpected(wrong_size(content));
    return Stale{};
  }
  return commit_if_dirty(file);
}

Result<Stale> Filesystem::sync(OpenFile& file) {
  PendingContent& content = *file.content;
  const std::scoped_lock lock(content.mutex);
  if (content.failure) return tl::unexpected(*content.failure);
  // What is durable of a transaction is decided when it is committed.
  if (file.kind == FileKind::Grouped) return Stale{};
  return commit_if_dirty(file);
}

Result<Stale> Filesystem::commit_if_dirty(const OpenFile& file) {
  PendingContent& content = *file.content;
  if (!content.is_dirty()) return Stale{};
  if (!content.is_whole()) return tl::unexpected(wrong_size(content));
  auto committed = commit(file);
  if (!committed) {
    log::error("{}: not committed: {}", label_of(content.tensor()), committed.error().message);
  }
  return committed;
}

Result<CommitOptions> Filesystem::commit_options(std::uint32_t shard, Stale& foreign) {
  ShardState& state = shards_[shard];
  if (state.is_broken) {
    return fail(ErrorCode::ArchiveChanged, ESTALE, "somebody else has changed the archive's header");
  }
  if (!std::exchange(state.is_untidy, true)) untidy_.push_back(shard);
  CommitOptions options = options_.commit;
  // In a series of small commits.
  if (model_->archive(shard).standing_journal().is_ready()) options.trust = kTrust;
  // What somebody else has done must not pass for part of our own change.
  options.on_foreign_change = [this, shard, &foreign]() -> Result<void> {
    foreign = note_foreign_change(shard).stale;
    return {};
  };
  return options;
}

Result<Stale> Filesystem::commit(const OpenFile& file) {
  PendingContent& content = *file.content;
  const std::scoped_lock commit_lock(commit_mutex_);
  Stale foreign;
  const auto options_of = [&](std::uint32_t shard) { return commit_options(shard, foreign); };
  const auto lock = [this](TensorPlace place) -> ReaderWriterLock& { return lock_of(place); };
  auto committed = content.commit(options_of, lock);
  // What failed behind the commit point shows new bytes, out of the journal.
  if (!committed) forget_(Stale::one(InodeTable::ino_of_tensor(content.tensor()), Stale::What::Content));
  if (!committed && foreign.what != Stale::What::Nothing) forget_(foreign);
  if (!committed) return pass_on(std::move(committed));
  note_commit(content.tensor());
  keep_journal(model_->place(content.tensor()).shard);
  note_commit_();
  if (foreign.what != Stale::What::Nothing) return foreign;
  // A shared content's bytes are in the page cache already, by the same writes.
  const bool is_in_cache = file.kind != FileKind::Shared && may_be_cached_[content.tensor()].exchange(false);
  return Stale::one(file.ino, is_in_cache ? Stale::What::Content : Stale::What::Attributes);
}

void Filesystem::note_commit(std::uint32_t tensor) {
  const Archive& archive = model_->archive_of(tensor);
  const std::int64_t mtime_ns =
      archive.has_unseen_change() ? wall_clock_ns(Clock::Coarse) : archive.identity().mtime_ns;
  const std::scoped_lock lock(state_mutex_);
  State& state = changed_states_.try_emplace(tensor, shard_of(tensor).common).first->second;
  state.generation = std::max(state.generation + 1, static_cast<std::uint64_t>(mtime_ns));
  state.mtime = timespec_of(mtime_ns);
}

Stale Filesystem::release(OpenFile* file) {
  PendingContent& content = *file->content;
  Stale stale;
  {
    const std::scoped_lock lock(content.mutex);
    bool is_last = false;
    {
      const std::scoped_lock state_lock(state_mutex_);
      is_last = --content.descriptors == 0;
    }
    if (is_last && content.is_dirty() && file->kind != FileKind::Grouped) {
      if (file->kind == FileKind::Shared && content.is_whole()) {
        if (auto committed = commit_if_dirty(*file)) stale = *committed;
      }
      if (content.is_dirty()) {
        log::warning("{}: dropped: {}", label_of(content.tensor()),
                     content.is_whole() ? "it could not be committed, or no writer's close came"
                                        : wrong_size(content).message);
        content.forget();
        stale = Stale::one(file->ino,
                           file->kind == FileKind::Shared ? Stale::What::Content : Stale::What::Nothing);
      }
    }
  }
  if (file->kind == FileKind::Grouped) transactions_.close(file->ino);
  const std::scoped_lock lock(state_mutex_);
  const auto shared = shared_contents_.find(file->ino);
  if (shared != shared_contents_.end() && shared->second.get() == &content && content.descriptors == 0) {
    shared_contents_.erase(shared);
    --shared_count_;
  }
  open_files_.erase(file);
  return stale;
}

void Filesystem::tidy() {
  std::vector<std::unique_ptr<File>> discarded;  // closed last, without the lock
  const std::scoped_lock commit_lock(commit_mutex_);
  for (const std::uint32_t shard : std::exchange(untidy_, {})) {
    shards_[shard].is_untidy = false;
    Archive& archive = model_->archive(shard);
    std::ranges::move(archive.take_discarded(), std::back_inserter(discarded));
    const auto settled = archive.standing_journal().settle(options_.commit.durability);
    if (!settled) log::warning("{}: {}", archive.path().string(), settled.error().message);
    const bool is_unseen = archive.has_unseen_change();
    if (const auto forgotten = forget_guests(archive); !forgotten)
      log::warning("{}: {}", archive.path().string(), forgotten.error().message);
    if (!is_unseen) continue;
    const Stale stale = note_foreign_change(shard).stale;
    if (stale.what != Stale::What::Nothing) forget_(stale);
  }
}

Result<void> Filesystem::forget_guests(Archive& archive) {
  StandingJournal& standing = archive.standing_journal();
  auto guests = standing.has_guests();
  if (!guests) return pass_on(std::move(guests));
  if (!*guests) return {};
  archive.doubt_own_changes();
  auto others = ArchiveLocks::are_taken(archive.file());
  if (!others) return pass_on(std::move(others));
  return *others ? Result<void>{} : standing.forget_guests();
}

void Filesystem::keep_journal(std::uint32_t shard) {
  Archive& archive = model_->archive(shard);
  if (!archive.standing_journal().is_wanted()) return;
  const auto made = archive.standing_journal().prepare();
  // Each commit has a journal of its own then.
  if (!made) log::warning("{}: {}", archive.path().string(), made.error().message);
}

void Filesystem::end() {
  abandon_pending();
  const std::scoped_lock commit_lock(commit_mutex_);
  for (const Shard& shard : model_->shards()) {
    if (!shard.archive) continue;
    const auto retired = shard.archive->standing_journal().retire(options_.commit.durability);
    if (!retired) log::warning("{}: {}", shard.path.string(), retired.error().message);
  }
}

void Filesystem::abandon_pending() {
  for (const std::string& name : transactions_.unfinished()) {
    log::warning("{}: transaction {} was not committed when the mount ended: rolled back",
                 model_->path().string(), name);
  }
  const std::scoped_lock lock(state_mutex_);
  for (const auto& [key, file] : open_files_) {
    if (!file->content->is_dirty()) continue;
    log::warning("{}: dropped: {} bytes were staged and not closed when the mount ended",
                 label_of(file->content->tensor()), file->content->size_bytes());
    file->content->forget();
  }
}

Error Filesystem::wrong_size(const PendingContent& content) const {
  const Tensor tensor = model_->tensors()[content.tensor()];
  return {ErrorCode::WrongSize, EINVAL,
          fmt::format("{} bytes came, {} {} needs {}", content.size_bytes(), name_of(tensor.dtype),
                      shape_text(tensor.shape), tensor.data.size_bytes)};
}

}  // namespace stfs
