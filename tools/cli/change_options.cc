#include "tools/cli/change_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "tools/cli/diagnostic.h"
#include "tools/target/journal_text.h"

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

bool is_alone_soon(const Archive& archive, const ChangeOptions& options) {
  constexpr std::chrono::seconds kEndOfMount{2};
  constexpr std::chrono::milliseconds kPause{10};
  const auto deadline = std::chrono::steady_clock::now() +
                        std::min<std::chrono::seconds>(kEndOfMount, std::chrono::seconds(options.wait_s));
  while (archive.has_other_readers()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

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
