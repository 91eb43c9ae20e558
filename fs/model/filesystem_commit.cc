// Commits staged bytes: closes, syncs, releases, and the work that remains after commits (filesystem.h).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/commit/transaction.h"
#include "core/format/json_string.h"
#include "fs/base/log.h"
#include "fs/base/process.h"
#include "fs/model/filesystem.h"

namespace stfs {
namespace {

bool waits_for_name(const PendingContent& content) {
  return content.made() != nullptr && content.made()->waits_for_name();
}

Content content_of(const PendingContent& content) {
  if (!content.is_dirty()) return Content::Clean;
  return content.is_whole() ? Content::Whole : Content::Cut;
}

}  // namespace

CloseFacts Filesystem::facts_of_close(const OpenFile& file, Owner owner, pid_t closer) const {
  const PendingContent& content = *file.content;
  CloseFacts facts{.content = content_of(content), .kind = file.kind};
  if (facts.content == Content::Clean) return facts;
  note_closer(facts, content.writers, file, owner, closer,
              [&](pid_t process) { return open_files_.is_open_elsewhere(content, process); });
  return facts;
}

Result<Stale> Filesystem::flush(OpenFile& file, Owner owner, pid_t closer) {
  PendingContent& content = *file.content;
  const std::scoped_lock lock(content.mutex);
  // A shell closes a copy before the first byte has come.
  if (file.kind == FileKind::Isolated && !content.writers.empty() &&
      file.opener_process == process_of(closer))
    content.is_closed = true;
  if (content.failure) return tl::unexpected(*content.failure);
  // Its rename has committed it, and could not wait until the kernel has forgotten what changed.
  Checkpoint* const saved = content.made() == nullptr ? nullptr : content.made()->checkpoint();
  if (saved != nullptr && saved->waits_for_name() && saved->is_committed())
    return stale(file.ino, Stale::What::Content);
  const CloseFacts facts = facts_of_close(file, owner, closer);
  switch (decide(facts)) {
    case CloseDecision::Wait: return Stale{};
    case CloseDecision::Commit: return commit_if_dirty(file);
    case CloseDecision::Keep: content.accept(); return Stale{};
    case CloseDecision::RollBack:
      content.fail(killed(content, closer, facts.ending));
      log::warning("{}", content.failure->message);
      return stale(file.ino, is_in_page_cache(file) ? Stale::What::Content : Stale::What::Nothing);
    case CloseDecision::Doubt:
      content.fail(killed(content, closer, facts.ending));
      if (is_in_page_cache(file)) forget_(stale(file.ino, Stale::What::Content));
      return tl::unexpected(*content.failure);
    case CloseDecision::Refuse:
      if (!content.writers.empty()) file.opener_has_closed = true;
      return tl::unexpected(wrong_size(content));
    case CloseDecision::Fail: break;
  }
  content.fail(wrong_size(content));
  if (content.made() != nullptr) log::warning("{}: dropped: {}", label_of(content), content.failure->message);
  return tl::unexpected(*content.failure);
}

Error Filesystem::killed(const PendingContent& content, pid_t closer, Ending ending) const {
  const std::string_view what =
      ending == Ending::Killed ? "was killed by a signal before it closed"
      : ending == Ending::Hidden
          ? "closed or was killed; /proc does not show this mount which of the two (hidepid), so "
            "only fsync(2) commits"
          : "ended without a close, by an exit or by a signal; this mount may not read which of "
            "the two";
  return {ErrorCode::InvalidArgument, EIO,
          fmt::format("{}: rolled back: the writer (pid {}) {}", label_of(content), closer, what)};
}

Result<Stale> Filesystem::sync(OpenFile& file) {
  PendingContent& content = *file.content;
  const std::scoped_lock lock(content.mutex);
  if (content.failure) return tl::unexpected(*content.failure);
  // fsync(2) does nothing in a transaction: its bytes become durable when it is committed.
  if (file.kind == FileKind::Grouped || waits_for_name(content)) return Stale{};
  return commit_if_dirty(file);
}

Result<Stale> Filesystem::commit_if_dirty(const OpenFile& file) {
  PendingContent& content = *file.content;
  if (!content.is_dirty()) return Stale{};
  if (!content.is_whole()) return tl::unexpected(wrong_size(content));
  if (waits_for_name(content)) {
    content.made()->keep();
    content.accept();
    return Stale{};
  }
  auto committed = content.made() != nullptr ? commit_new(file) : commit(file);
  if (!committed) {
    content.was_refused = true;
    // After a failure behind the commit point nothing is pending any more.
    log::error("{}: {}: {}", label_of(content), content.is_dirty() ? "not committed" : "not finished",
               committed.error().message);
  }
  return committed;
}

Result<void> Filesystem::commit_in_turn(
    const Committers::Shards& shards, Foreign& foreign,
    const std::function<Result<void>(const TransactionGroup::OptionsOf&)>& attempt) {
  return committers_.in_turn(shards, [&](const CommitOptions& of_all) {
    return attempt([&](std::uint32_t shard) -> Result<CommitOptions> {
      if (reader_.is_broken(shard)) {
        return fail(ErrorCode::ArchiveChanged, ESTALE, "another program has changed the archive's header");
      }
      CommitOptions options = of_all;
      // Changes by others must be reported separately, not as part of our own change.
      options.on_foreign_change = [this, shard, &foreign]() -> Result<void> {
        // The commit has done the check. A second check could fail, and then the change would be lost.
        foreign[shard] = note_touched(shard);
        return {};
      };
      return options;
    });
  });
}

Result<Stale> Filesystem::commit(const OpenFile& file) {
  PendingContent& content = *file.content;
  if (content.is_copy()) return commit_copy(file);
  const std::uint32_t shard = model_->place(content.tensor()).shard;
  Foreign foreign;
  const auto lock = [this](TensorPlace place) -> ReaderWriterLock& { return reader_.lock_of(place); };
  const auto in_turn = [&](const Committers::Shards& shards, const auto& attempt) {
    return commit_in_turn(shards, foreign,
                          [&](const TransactionGroup::OptionsOf& options_of) -> Result<void> {
                            auto done = attempt(options_of);
                            if (done) note_commit(content);
                            return done;
                          });
  };
  auto committed = content.commit(lock, in_turn);
  // After a failure behind the commit point, reads show the new bytes, out of the journal.
  if (!committed) forget_(stale(InodeTable::ino_of_tensor(content.tensor()), Stale::What::Content));
  const Stale others = foreign[shard];
  if (!committed && others.what != Stale::What::Nothing) forget_(others);
  if (!committed) return pass_on(std::move(committed));
  note_commit_();
  if (others.what != Stale::What::Nothing) return others;
  // The page cache already has a shared content's bytes, because its writes went through the page cache.
  const bool is_in_cache =
      file.kind != FileKind::Shared && may_be_cached_[number_of(content.tensor())].exchange(false);
  return stale(file.ino, is_in_cache ? Stale::What::Content : Stale::What::Attributes);
}

Result<Stale> Filesystem::commit_copy(const OpenFile& file) {
  PendingContent& content = *file.content;
  const TensorId tensor = content.tensor();
  if (model_->ids().position(tensor) && !model_->is_of_base(model_->place(tensor).shard)) {
    // Since the first write another program has brought it into the delta.
    auto committed = commit_in_place(tensor, [&](Staging& stage) { return copy_content(content, stage); });
    if (committed) content.forget();
    return committed;
  }
  StructureChange change;
  change.is_patch = true;
  change.apply = [&](ModelEdit& edit) -> Result<void> {
    if (!model_->ids().position(tensor))
      return fail(ErrorCode::ArchiveChanged, ESTALE, label_of(content) + ": was deleted");
    const Tensor now = model_->tensor(tensor);
    change.ids = {{std::string(now.name), tensor}};
    return edit.put(std::string(now.name), now.dtype, {now.shape.begin(), now.shape.end()});
  };
  change.fill = [&](ModelEdit& edit) -> Result<void> {
    Staging* const stage = edit.stage(model_->tensor(tensor).name);
    return stage == nullptr ? Result<void>() : copy_content(content, *stage);
  };
  // It completes the stage, which does not change from here on, so readers may come in.
  if (auto completed = content.staged()->pieces(); !completed) return tl::unexpected(completed.error());
  content.mutex.admit_readers();
  auto outdated = edit(change);
  content.mutex.send_readers_out();
  if (!outdated) return pass_on(std::move(outdated));
  if (const auto mtime = open_files_.kept_mtime(content)) states_.set_mtime(tensor, *mtime);
  content.forget();
  tell_outdated_(*outdated);
  const bool is_in_cache = file.kind != FileKind::Shared && may_be_cached_[number_of(tensor)].exchange(false);
  return stale(InodeTable::ino_of_tensor(tensor),
               is_in_cache ? Stale::What::Content : Stale::What::Attributes);
}

Result<void> Filesystem::copy_content(PendingContent& content, Staging& to) const {
  constexpr std::uint64_t kPieceBytes = 4 << 20;
  const auto read_base = [&](std::span<std::byte> part, std::uint64_t at) {
    return reader_.copy(content.tensor(), at, part);
  };
  std::vector<std::byte> buffer;
  for (std::uint64_t done = 0; done < content.size_bytes(); done += buffer.size()) {
    buffer.resize(static_cast<std::size_t>(std::min(kPieceBytes, content.size_bytes() - done)));
    if (auto read = content.read(buffer, done, read_base); !read) return read;
    if (auto written = to.write(buffer, done); !written) return written;
  }
  return {};
}

void Filesystem::note_commit(const PendingContent& content) {
  const TensorId tensor = content.tensor();
  states_.note_commit(tensor, model_->archive_of(tensor).identity().mtime_ns,
                      open_files_.kept_mtime(content));
}

Stale Filesystem::release(OpenFile* file) {
  PendingContent& content = *file->content;
  Stale stale;
  {
    const std::scoped_lock lock(content.mutex);
    const bool is_last = open_files_.leave(content);
    // A file that was made and never written becomes an empty tensor.
    if (is_last && content.made() != nullptr && !content.failure) content.made()->note_end();
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
      log::warning("{}: dropped: {}", label_of(content),
                   content.is_whole() ? "it could not be committed, or its writer was killed by a signal"
                                      : wrong_size(content).message);
      if (transactions_.is_hidden(file->ino)) {
        content.fail(
            {ErrorCode::WrongSize, EINVAL, label_of(content) + ": its NumPy file was not written whole"});
      } else {
        content.forget();
      }
      stale = this->stale(file->ino, is_in_page_cache(*file) ? Stale::What::Content : Stale::What::Nothing);
    }
    if (is_last && content.failure && transactions_.is_hidden(file->ino)) stage_npy_failure(*file);
  }
  if (file->kind == FileKind::Grouped) transactions_.close(file->ino);
  if (file->kind == FileKind::New) end_draft(*file);
  open_files_.remove(file);
  return stale;
}

void Filesystem::end() {
  abandon_pending();
  reclaim(true);
  committers_.end();
}

void Filesystem::abandon_pending() {
  for (const std::string& name : transactions_.unfinished()) {
    log::warning("{}: transaction {} was not committed when the mount ended: rolled back",
                 model_->path().string(), name);
  }
  open_files_.visit([this](const OpenFile& file) {
    if (!file.content->is_dirty()) return;
    log::warning("{}: dropped: {} bytes were staged and not closed when the mount ended",
                 label_of(*file.content), file.content->size_bytes());
    file.content->forget();
  });
  for (const std::string& name : drafts_.kept()) {
    log::warning(
        "{}: dropped: {} had not got a name that a tensor or a checkpoint can have when the mount ended",
        model_->path().string(), in_quotes(name));
  }
}

Error Filesystem::wrong_size(const PendingContent& content) const {
  if (content.made() != nullptr) {
    auto right = content.made()->check();
    return right ? Error{ErrorCode::WrongSize, EINVAL, "not written"} : std::move(right).error();
  }
  const Tensor tensor = model_->tensor(content.tensor());
  const std::string_view advice =
      check_editable()
          ? "; for another size, set user.safetensors.dtype or .shape while the file is open and "
            "nothing is written yet, or write a NumPy file to .safetensors/npy"
          : "";
  return {ErrorCode::WrongSize, EINVAL,
          fmt::format("{} bytes were written, {} {} needs {}{}", content.size_bytes(), name_of(tensor.dtype),
                      shape_text(tensor.shape), tensor.data.size_bytes, advice)};
}

}  // namespace stfs
