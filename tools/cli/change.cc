// Stages in pieces, and decides when an interrupt takes effect.
#include "tools/cli/change.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <ostream>

#include "core/model/model_edit.h"
#include "tools/cli/diagnostic.h"
#include "tools/target/journal_text.h"
#include "tools/text/printable.h"

namespace stfs::tools {

void add_change_options(CommandLine& line, ChangeOptions& options) {
  line.choice(options.durability, "--durability", "power|process",
              "The change survives a loss of power (the default), or a killed process only.",
              {"power", "process"});
  line.flag(options.has_no_locks, "--nolock",
            "Take no locks. Safe only if no other program writes the archive.");
  line.number(options.wait_s, "--wait", "SECONDS",
              "Wait up to SECONDS for the locks of other writers. Default: 10.", 0, 86400);
}

CommitOptions commit_options_of(const ChangeOptions& options) {
  CommitOptions commit;
  commit.durability = options.durability == "process" ? Durability::Process : Durability::Power;
  commit.uses_locks = !options.has_no_locks;
  commit.lock_patience = std::chrono::seconds(options.wait_s);
  return commit;
}

int attempt_beside_others(const ChangeOptions& options, Streams& streams,
                          const std::function<Result<int>()>& attempt) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(options.wait_s);
  for (;;) {
    const auto done = attempt();
    if (done) return *done;
    const bool is_edited =
        done.error().code == ErrorCode::ArchiveChanged && done.error().errno_value == ESTALE;
    if (!is_edited || std::chrono::steady_clock::now() >= deadline)
      return report_failure(streams, done.error().message);
  }
}

Change::Change(Streams& streams, const Model& model, const ChangeOptions& options, std::uint64_t total_bytes)
    : streams_(streams),
      model_(model),
      options_(commit_options_of(options)),
      total_bytes_(total_bytes),
      transaction_(model) {
  guard_.emplace();
  // Each byte is counted twice: when it is staged and when it is committed.
  progress_.emplace(streams, 2 * total_bytes);
}

Result<void> Change::stage(std::uint32_t tensor, const ReadPiece& read_piece) {
  auto staging = transaction_.stage(model_.place(tensor));
  if (!staging) return pass_on(std::move(staging));
  staged_[tensor] = *staging;
  // Reserve the space for the whole new content, so that a lack of space is reported now.
  if (auto emptied = (*staging)->resize(0); !emptied) return emptied;
  const std::uint64_t size_bytes = (*staging)->target().size_bytes;
  for (std::uint64_t offset = 0; offset < size_bytes;) {
    const auto piece = read_piece({offset, std::min(kPieceBytes, size_bytes - offset)});
    // Check the interrupt before the error of the read, because the signal may have interrupted the read.
    if (interrupted()) {
      return fail(ErrorCode::System, EINTR, model_.path().string() + ": interrupted: not changed");
    }
    if (!piece) return tl::unexpected(piece.error());
    if (auto written = (*staging)->write(*piece, offset); !written) return written;
    offset += piece->size();
    progress_->advance(piece->size());
  }
  return {};
}

Result<void> Change::stage(std::uint32_t tensor, const Model& from, std::uint32_t position) {
  std::vector<std::byte> scratch;
  return stage(tensor, [&](ByteRange piece) {
    const std::uint64_t offset = from.file_range(position).offset + piece.offset;
    return from.archive_of(position).read({offset, piece.size_bytes}, scratch);
  });
}

Result<void> Change::commit() {
  // While the commit waits for locks and hashes blocks, a signal may simply end the process: the journal has
  // no name yet and vanishes with the process (core/journal/journal.h).
  guard_.reset();
  std::map<std::uint32_t, std::uint64_t> shown_bytes;  // by shard
  std::uint64_t left_bytes = total_bytes_;             // whole blocks have more bytes than their tensors
  const auto options_of = [&](std::uint32_t shard) -> Result<CommitOptions> {
    CommitOptions options = options_;
    options.on_progress = [&, shard](std::uint64_t done_bytes, std::uint64_t in_all_bytes) {
      // All blocks are hashed after the first half. The second half must not be interrupted.
      if (!guard_ && done_bytes >= in_all_bytes / 2) guard_.emplace();
      std::uint64_t& shown = shown_bytes[shard];
      const std::uint64_t now = std::max(shown, done_bytes);
      const std::uint64_t more = std::min(now - shown, left_bytes);
      progress_->advance(more);
      left_bytes -= more;
      shown = now;
    };
    return options;
  };
  auto committed = transaction_.has_copies()
                       ? commit_copies(options_of)
                       : transaction_.commit(
                             options_of, [this](TensorPlace) -> auto& { return lock_; });
  progress_.reset();
  if (committed && guard_ && interrupted()) {
    report_failure(streams_, "the interrupt came after the commit: the change is complete");
  }
  return committed;
}

Result<void> Change::commit_copies(const TransactionGroup::OptionsOf& options_of) {
  auto edit = ModelEdit::of(model_);
  if (!edit) return pass_on(std::move(edit));
  for (const auto& [position, stage] : staged_) {
    const Tensor tensor = model_.tensors()[position];
    auto put = edit->put(std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()});
    if (!put) return put;
  }
  if (auto begun = edit->begin(options_.uses_locks); !begun) return begun;
  for (const auto& [position, stage] : staged_) {
    Staging* const place = edit->stage(model_.tensors()[position].name);
    if (place == nullptr) continue;  // it has no bytes
    const auto all_is_staged = [](std::span<std::byte>, std::uint64_t) { return Result<void>(); };
    const auto read = [&, from = stage](std::span<std::byte> to, std::uint64_t offset) {
      return from->read(to, offset, all_is_staged);
    };
    if (auto written = place->write_all(stage->size_bytes(), read); !written) return written;
  }
  return edit->commit(options_of, [this](TensorPlace) -> ReaderWriterLock& { return lock_; });
}

void report_recovered(Streams& streams, const Model& model) {
  for (const std::string& text : ignored_beside(model)) report_failure(streams, text);
  for (const Shard& shard : model.shards()) {
    if (!shard.archive) continue;
    for (const JournalReport& report : shard.archive->recovered()) {
      const bool is_applied = report.action == JournalAction::Applied;
      if (report.is_ignored || (!is_applied && !is_left_undone(report))) continue;
      report_failure(streams, fmt::format("{}: {}: {}{}{}", report.path.string(),
                                          is_applied ? "applied" : "can't be used", explanation_of(report),
                                          is_applied || report.next_step.empty() ? "" : ": ",
                                          is_applied ? "" : report.next_step));
      if (report.is_left_void) {
        report_failure(streams, fmt::format("{}: {}", report.path.string(), left_void_text(report)));
      }
    }
  }
}

}  // namespace stfs::tools
