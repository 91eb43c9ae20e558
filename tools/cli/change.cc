// One path for all verbs that change a model.
#include "tools/cli/change.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <ostream>
#include <utility>

#include "tools/cli/diagnostic.h"
#include "tools/target/target.h"
#include "tools/text/near_names.h"
#include "tools/text/quantity.h"

namespace stfs::tools {

std::unique_ptr<Change> open_for_edit(const std::string& named, const EditOptions& options,
                                      Streams& streams) {
  auto model = open_whole(named, Use::Change, {.access = Access::ReadWrite});
  if (!model) {
    report_failure(streams, model.error().message);
    return nullptr;
  }
  report_recovered(streams, **model);
  if (const auto editable = ModelEdit::check(**model); !editable) {
    report_failure(streams, editable.error().message);
    return nullptr;
  }
  return std::make_unique<Change>(streams, std::move(*model), options);
}

Result<void> Change::carry_out(std::uint64_t new_bytes, const Fill& fill) {
  const bool uses_locks = !options_.change.has_no_locks;
  if (options_.is_dry_run) return what_.plan(uses_locks);
  if (what_.is_empty()) return {};
  // A file of staged bytes may have a name if the file system has no unnamed files.
  guard_.emplace();
  RETURN_IF_ERROR(what_.begin(uses_locks));
  // Each byte is counted twice: when it is staged or moved, and when it is committed.
  const std::uint64_t total_bytes = 2 * (new_bytes + what_.moved_bytes());
  progress_.emplace(streams_, total_bytes);
  RETURN_IF_ERROR(fill());
  auto committed = commit(total_bytes - new_bytes);
  progress_.reset();
  RETURN_IF_ERROR(committed);
  if (!guard_) guard_.emplace();
  std::vector<std::uint32_t> shards;
  for (const ModelEdit::Changed& changed : what_.changed()) shards.push_back(changed.shard);
  left_ = close_gaps(*model_, shards, options_.keeps_space, commit_options_of(options_.change), streams_);
  if (interrupted()) {
    report_failure(streams_, "the interrupt came after the commit: the change is complete");
  }
  return committed;
}

Result<void> Change::write(std::string_view name, const ReadPiece& read_piece) {
  return what_.write(name, [&](ByteRange rest) -> Result<std::span<const std::byte>> {
    auto piece = read_piece({rest.offset, std::min(kPieceBytes, rest.size_bytes)});
    // Check the interrupt before the error of the read, because the signal may have interrupted the read.
    if (interrupted()) {
      return fail(ErrorCode::System, EINTR, model_->path().string() + ": interrupted: not changed");
    }
    if (piece) progress_->advance(piece->size());
    return piece;
  });
}

Result<void> Change::write(const Model& from, std::uint32_t position) {
  std::vector<std::byte> scratch;
  return write(from.tensors()[position].name, [&](ByteRange piece) {
    const std::uint64_t offset = from.file_range(position).offset + piece.offset;
    return from.archive_of(position).read({offset, piece.size_bytes}, scratch);
  });
}

/// @param left_bytes  of the progress line.
Result<void> Change::commit(std::uint64_t left_bytes) {
  // While the commit waits for locks and hashes blocks, a signal may simply end the process: the journal has
  // no name yet and vanishes with the process (core/journal/journal.h).
  guard_.reset();
  std::map<std::uint32_t, std::uint64_t> shown_bytes;  // by shard
  const auto options_of = [&](std::uint32_t shard) -> Result<CommitOptions> {
    CommitOptions options = commit_options_of(options_.change);
    options.on_progress = [&, shard](std::uint64_t done_bytes, std::uint64_t in_all_bytes) {
      // All blocks are hashed after the first half. The second half must not be interrupted.
      if (!guard_ && done_bytes >= in_all_bytes / 2) guard_.emplace();
      std::uint64_t& shown = shown_bytes[shard];
      const std::uint64_t now = std::max(shown, done_bytes);
      const std::uint64_t more = std::min(now - shown, left_bytes);  // blocks have more bytes than tensors
      progress_->advance(more);
      left_bytes -= more;
      shown = now;
    };
    return options;
  };
  ReaderWriterLock lock;  // no other thread reads this model
  return what_.commit(options_of, [&lock](TensorPlace) -> ReaderWriterLock& { return lock; });
}

void Change::print_result(std::string_view what) const {
  std::ostream& out = streams_.out;
  out << (options_.is_dry_run ? "would have " : "") << what;
  if (const std::uint64_t for_header_bytes = what_.moved_bytes(); for_header_bytes > 0) {
    out << fmt::format("; moved {} to make room for the header", human_size(for_header_bytes));
  }
  if (left_.moved_bytes > 0) {
    out << fmt::format("; moved {} into the gap", human_size(left_.moved_bytes));
  }
  out << '\n';
}

int Change::report(const ChangeReport& report) const {
  if (options_.json) {
    Json document = json();
    document.update(report.members);
    write_json(document, streams_.out);
  } else {
    if (options_.is_dry_run) {
      for (const std::string& name : report.names) streams_.out << name << '\n';
    }
    print_result(report.what);
  }
  streams_.out.flush();
  return streams_.out ? kDone : kFailed;
}

Json Change::json() const {
  Json document = json_document();
  document["path"] = json_path(model_->path());
  document["changed"] = !options_.is_dry_run && !what_.is_empty();
  document["free_bytes"] = what_.freed_bytes();
  document["moved_bytes"] = what_.moved_bytes() + left_.moved_bytes;
  document["filler_bytes"] = left_.filler_bytes;
  return document;
}

int report_unmatched(const std::string& target, std::span<const std::string> globs, const Model& model,
                     Streams& streams) {
  for (const std::string& glob : globs) {
    report_failure(streams, target + ": " + unmatched_text(glob, {&model.tensors()}));
  }
  return kFailed;
}

}  // namespace stfs::tools
