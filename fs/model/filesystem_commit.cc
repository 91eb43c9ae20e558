// Commits staged bytes: closes, syncs, releases, and the work that remains after commits (filesystem.h).
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "core/commit/transaction.h"
#include "core/journal/file_lock.h"
#include "fs/base/log.h"
#include "fs/base/process.h"
#include "fs/model/filesystem.h"

namespace stfs {
namespace {

// The pauses between two attempts to get another process's lock.
constexpr std::chrono::milliseconds kFirstPause{1};
constexpr std::chrono::milliseconds kLongestPause{20};

Content content_of(const PendingContent& content) {
  if (!content.is_dirty()) return Content::Clean;
  return content.is_whole() ? Content::Whole : Content::Cut;
}

}  // namespace

CloseFacts Filesystem::facts_of_close(const OpenFile& file, Owner owner, pid_t closer) const {
  const PendingContent& content = *file.content;
  CloseFacts facts{.content = content_of(content), .kind = file.kind};
  if (facts.content == Content::Clean) return facts;
  const pid_t process = process_of(closer);
  const bool is_opener = file.opener_process == process;
  const bool is_touched = !file.is_untouched;
  if (content.writers.contains(owner, process)) {
    facts.closer = Closer::Writer;
    facts.others_answer = !is_opener && !file.opener_has_closed && is_alive(file.opener_process);
  } else if (is_opener && content.writers.has_unnamed() && (is_touched || facts.content == Content::Whole)) {
    facts.closer = Closer::Mapper;
    facts.others_answer = is_open_elsewhere(content, process);
  } else if (is_opener && is_touched) {
    facts.closer = Closer::Opener;
    facts.others_answer = content.writers.others_live(owner, process);
  }
  if (facts.closer != Closer::Bystander) facts.ending = ending_of(closer);
  return facts;
}

bool Filesystem::is_open_elsewhere(const PendingContent& content, pid_t process) const {
  const std::scoped_lock lock(state_mutex_);
  return std::ranges::any_of(open_files_, [&](const auto& open) {
    const OpenFile& file = *open.first;
    return file.content.get() == &content && file.opener_process != process && !file.opener_has_closed &&
           is_alive(file.opener_process);
  });
}

Result<Stale> Filesystem::flush(OpenFile& file, Owner owner, pid_t closer) {
  PendingContent& content = *file.content;
  const std::scoped_lock lock(content.mutex);
  if (content.failure) return tl::unexpected(*content.failure);
  const CloseFacts facts = facts_of_close(file, owner, closer);
  switch (decide(facts)) {
    case CloseDecision::Wait: return Stale{};
    case CloseDecision::Commit: return commit_if_dirty(file);
    case CloseDecision::Keep: content.accept(); return Stale{};
    case CloseDecision::RollBack:
      content.fail(killed(content, closer, facts.ending));
      log::warning("{}", content.failure->message);
      return Stale::one(file.ino, is_in_page_cache(file) ? Stale::What::Content : Stale::What::Nothing);
    case CloseDecision::Doubt:
      content.fail(killed(content, closer, facts.ending));
      if (is_in_page_cache(file)) forget_(Stale::one(file.ino, Stale::What::Content));
      return tl::unexpected(*content.failure);
    case CloseDecision::Refuse:
      if (!content.writers.empty()) file.opener_has_closed = true;
      return tl::unexpected(wrong_size(content));
    case CloseDecision::Fail: break;
  }
  content.fail(wrong_size(content));
  return tl::unexpected(*content.failure);
}

Error Filesystem::killed(const PendingContent& content, pid_t closer, Ending ending) const {
  const std::string_view what =
      ending == Ending::Killed ? "was killed by a signal before it closed"
      : ending == Ending::Hidden
          ? "closed or was killed: /proc hides which from this mount (hidepid), so that "
            "only fsync(2) commits"
          : "ended without a close, and this mount may not read whether by an exit or "
            "by a signal";
  return {ErrorCode::InvalidArgument, EIO,
          fmt::format("{}: rolled back: the writer (pid {}) {}", label_of(content.tensor()), closer, what)};
}

Result<Stale> Filesystem::sync(OpenFile& file) {
  PendingContent& content = *file.content;
  const std::scoped_lock lock(content.mutex);
  if (content.failure) return tl::unexpected(*content.failure);
  // fsync(2) does nothing in a transaction: its bytes become durable when it is committed.
  if (file.kind == FileKind::Grouped) return Stale{};
  return commit_if_dirty(file);
}

Result<Stale> Filesystem::commit_if_dirty(const OpenFile& file) {
  PendingContent& content = *file.content;
  if (!content.is_dirty()) return Stale{};
  if (!content.is_whole()) return tl::unexpected(wrong_size(content));
  auto committed = commit(file);
  if (!committed) {
    content.was_refused = true;
    // After a failure behind the commit point nothing is pending any more.
    log::error("{}: {}: {}", label_of(content.tensor()),
               content.is_dirty() ? "not committed" : "not finished", committed.error().message);
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
  options.lock_patience = {};
  options.has_waited = has_waited_;
  options.settle_others = [this] { settle_journals(); };
  // Changes by others must be reported separately, not as part of our own change.
  options.on_foreign_change = [this, shard, &foreign]() -> Result<void> {
    // The commit has done the check. A second check could fail, and then the change would be lost.
    foreign = note_touched(shard);
    return {};
  };
  return options;
}

Result<void> Filesystem::commit_in_turn(const std::function<Result<void>()>& attempt) {
  const auto begin = std::chrono::steady_clock::now();
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    {
      const std::scoped_lock commit_lock(commit_mutex_);
      const auto has_waited =
          std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
      const bool is_last = has_waited >= options_.commit.lock_patience;
      has_waited_ = is_last ? std::optional(has_waited) : std::nullopt;
      auto done = attempt();
      if (done || is_last || done.error().code != ErrorCode::Busy) return done;
    }
    std::this_thread::sleep_for(pause);
  }
}

Result<Stale> Filesystem::commit(const OpenFile& file) {
  PendingContent& content = *file.content;
  Stale foreign;
  const auto options_of = [&](std::uint32_t shard) { return commit_options(shard, foreign); };
  const auto lock = [this](TensorPlace place) -> ReaderWriterLock& { return lock_of(place); };
  const auto in_turn = [&](const std::function<Result<void>()>& attempt) {
    return commit_in_turn([&]() -> Result<void> {
      if (auto done = attempt(); !done) return done;
      note_commit(content);
      keep_journal(model_->place(content.tensor()).shard);
      return {};
    });
  };
  auto committed = content.commit(options_of, lock, in_turn);
  // After a failure behind the commit point, reads show the new bytes, out of the journal.
  if (!committed) forget_(Stale::one(InodeTable::ino_of_tensor(content.tensor()), Stale::What::Content));
  if (!committed && foreign.what != Stale::What::Nothing) forget_(foreign);
  if (!committed) return pass_on(std::move(committed));
  note_commit_();
  if (foreign.what != Stale::What::Nothing) return foreign;
  // The page cache already has a shared content's bytes, because its writes went through the page cache.
  const bool is_in_cache = file.kind != FileKind::Shared && may_be_cached_[content.tensor()].exchange(false);
  return Stale::one(file.ino, is_in_cache ? Stale::What::Content : Stale::What::Attributes);
}

void Filesystem::note_commit(const PendingContent& content) {
  const std::uint32_t tensor = content.tensor();
  const std::int64_t mtime_ns = model_->archive_of(tensor).identity().mtime_ns;
  const std::scoped_lock lock(state_mutex_);
  State& state = changed_states_.try_emplace(tensor, shard_of(tensor).common).first->second;
  state.generation = std::max(state.generation + 1, static_cast<std::uint64_t>(mtime_ns));
  state.mtime = content.keeps_mtime ? content.mtime : timespec_of(mtime_ns);
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
    ReleaseFacts facts{.content = content_of(content),
                       .kind = file->kind,
                       .is_last = is_last,
                       .has_unnamed_bytes = content.writers.has_unnamed(),
                       .was_refused = content.was_refused};
    if (facts.content == Content::Whole) facts.is_killed = content.writers.is_any_killed();
    ReleaseDecision decision = decide(facts);
    if (decision == ReleaseDecision::Commit) {
      if (auto committed = commit_if_dirty(*file)) stale = *committed;
      facts.content = content_of(content);
      facts.was_refused = content.was_refused;
      decision = decide(facts);
    }
    if (decision == ReleaseDecision::Drop) {
      log::warning("{}: dropped: {}", label_of(content.tensor()),
                   content.is_whole() ? "it could not be committed, or its writer was killed by a signal"
                                      : wrong_size(content).message);
      content.forget();
      stale = Stale::one(file->ino, is_in_page_cache(*file) ? Stale::What::Content : Stale::What::Nothing);
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
  std::vector<std::unique_ptr<File>> discarded;  // declared first, so closed last, without the lock
  const std::scoped_lock commit_lock(commit_mutex_);
  settle_journals();
  for (const std::uint32_t shard : std::exchange(untidy_, {})) {
    shards_[shard].is_untidy = false;
    std::ranges::move(model_->archive(shard).take_discarded(), std::back_inserter(discarded));
  }
}

void Filesystem::settle_journals() {
  for (const std::uint32_t shard : untidy_) {
    Archive& archive = model_->archive(shard);
    const auto settled = archive.standing_journal().settle(archive.durability(options_.commit.durability));
    // After a failure this process gives the journal up. The next process that needs its bytes recovers it.
    if (!settled) log::warning("{}: {}", archive.path().string(), settled.error().message);
  }
}

void Filesystem::keep_journal(std::uint32_t shard) {
  Archive& archive = model_->archive(shard);
  if (!archive.standing_journal().is_wanted()) return;
  const auto made = archive.standing_journal().prepare();
  // After a failure each commit makes a journal of its own.
  if (!made) log::warning("{}: {}", archive.path().string(), made.error().message);
}

void Filesystem::retire_journal(std::uint32_t shard) {
  Archive& archive = model_->archive(shard);
  const auto retired = archive.standing_journal().retire(archive.durability(options_.commit.durability));
  if (!retired) log::warning("{}: {}", archive.path().string(), retired.error().message);
}

void Filesystem::end() {
  abandon_pending();
  const std::scoped_lock commit_lock(commit_mutex_);
  for (std::uint32_t shard = 0; shard < model_->shards().size(); ++shard) {
    if (model_->shards()[shard].archive) retire_journal(shard);
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
