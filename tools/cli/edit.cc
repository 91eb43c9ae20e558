// One path for all verbs that edit.
#include "tools/cli/edit.h"

#include <fmt/format.h>

#include <cerrno>
#include <optional>
#include <ostream>

#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/target/target.h"
#include "tools/text/near_names.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {

void add_keep_space(CommandLine& line, bool& keeps_space) {
  line.flag(keeps_space, "--keep-space",
            "Move no tensors into the space of deleted ones: fillers keep it for new tensors.");
}

void add_edit_options(CommandLine& line, EditOptions& options) {
  line.flag(options.is_dry_run, "-n,--dry-run", "Check all and print what would change. Change nothing.");
  line.flag(options.change.has_no_locks, "--nolock",
            "Take no locks. Safe only if no other program has the archive open.");
  line.number(options.change.wait_s, "--wait", "SECONDS",
              "Wait up to SECONDS for the locks of other writers. Default: 10.", 0, 86400);
  line.flag(options.json, "--json", "Print the result as a JSON object.");
}

std::optional<EditTarget> open_for_edit(const std::string& named, Streams& streams) {
  auto model = open_whole(named, Use::Change, {.access = Access::ReadWrite});
  if (!model) {
    report_failure(streams, model.error().message);
    return std::nullopt;
  }
  report_recovered(streams, **model);
  auto edit = ModelEdit::of(**model);
  if (!edit) {
    report_failure(streams, edit.error().message);
    return std::nullopt;
  }
  return EditTarget{std::move(*model), std::move(*edit)};
}

Result<void> carry_out(EditTarget& target, const EditOptions& options, std::uint64_t new_bytes,
                       const Fill& fill, Streams& streams) {
  ModelEdit& edit = target.edit;
  const bool uses_locks = !options.change.has_no_locks;
  if (options.is_dry_run) return edit.plan(uses_locks);
  if (edit.is_empty()) return {};
  // A file of staged bytes may have a name where the file system has no unnamed ones.
  std::optional<InterruptGuard> guard(std::in_place);
  if (auto begun = edit.begin(uses_locks); !begun) return begun;
  // Each byte is counted twice: when it is staged or moved, and when it is committed.
  std::optional<Progress> progress(std::in_place, streams, 2 * (new_bytes + edit.moved_bytes()));
  const auto advance = [&](std::uint64_t bytes) -> Result<void> {
    progress->advance(bytes);
    if (!interrupted()) return {};
    return fail(ErrorCode::System, EINTR, target.model->path().string() + ": interrupted: not changed");
  };
  if (fill) {
    if (auto filled = fill(advance); !filled) return filled;
  }
  // As Change::commit(): until the commit point, a signal may simply end the process.
  guard.reset();
  CommitOptions commit;
  commit.uses_locks = uses_locks;
  commit.lock_patience = std::chrono::seconds(options.change.wait_s);
  commit.on_progress = [&](std::uint64_t done_bytes, std::uint64_t in_all_bytes) {
    if (!guard && done_bytes >= in_all_bytes / 2) guard.emplace();
    progress->show(new_bytes + done_bytes);
  };
  auto committed = edit.commit(commit);
  progress.reset();
  if (!committed) return committed;
  if (!guard) guard.emplace();
  std::vector<std::uint32_t> shards;
  for (const ModelEdit::Changed& changed : edit.changed()) shards.push_back(changed.shard);
  target.left =
      close_gaps(*target.model, shards, options.keeps_space, commit_options_of(options.change), streams);
  if (interrupted()) {
    report_failure(streams, "the interrupt came after the commit: the change is complete");
  }
  return committed;
}

void print_result(std::ostream& out, const EditTarget& target, const EditOptions& options,
                  std::string_view what) {
  const std::uint64_t for_header_bytes = target.edit.moved_bytes();
  out << (options.is_dry_run ? "would have " : "") << what;
  if (for_header_bytes > 0) {
    out << fmt::format("; moved {} to make room for the header", human_size(for_header_bytes));
  }
  if (target.left.moved_bytes > 0) {
    out << fmt::format("; moved {} into the gap", human_size(target.left.moved_bytes));
  }
  out << '\n';
}

int report_edit(const EditTarget& target, const EditOptions& options, const EditReport& report,
                Streams& streams) {
  if (options.json) {
    Json document = json_of_edit(target, options);
    document.update(report.members);
    write_json(document, streams.out);
  } else {
    if (options.is_dry_run) {
      for (const std::string& name : report.names) streams.out << name << '\n';
    }
    print_result(streams.out, target, options, report.what);
  }
  streams.out.flush();
  return streams.out ? kDone : kFailed;
}

Json json_of_edit(const EditTarget& target, const EditOptions& options) {
  const ModelEdit& edit = target.edit;
  Json document = json_document();
  document["path"] = json_path(target.model->path());
  document["changed"] = !options.is_dry_run && !edit.is_empty();
  document["free_bytes"] = edit.freed_bytes();
  document["moved_bytes"] = edit.moved_bytes() + target.left.moved_bytes;
  document["filler_bytes"] = target.left.filler_bytes;
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
