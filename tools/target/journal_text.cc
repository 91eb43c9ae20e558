#include "tools/target/journal_text.h"

#include <fmt/format.h>

#include <string_view>

namespace stfs::tools {

std::string explanation_of(const JournalReport& report) {
  std::string_view text = report.explanation;
  const std::string prefix = report.path.string() + ": ";
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  return std::string(text);
}

std::string left_void_text(const JournalReport& report) {
  if (!report.is_left_void) return "";
  return fmt::format(
      "it holds no commit any more; in this directory only {}, or the directory's owner, may remove it",
      report.settlers);
}

bool is_left_undone(const JournalReport& report) {
  return report.action == JournalAction::None && report.state != JournalState::InUse && !report.is_left_void;
}

std::string advice_on(const JournalReport& report) {
  if (!report.next_step.empty()) return report.next_step;
  switch (report.state) {
    case JournalState::Committed:
    case JournalState::Unfinished: return "`stfs recover` without --dry-run does it";
    case JournalState::Foreign:
      return "--force applies it if it knows every block of the archive; delete it if it belongs to no "
             "archive "
             "any more";
    case JournalState::Damaged:
      return "its change cannot be read any more and the archive may hold a part of it: compare the archive "
             "with a copy, then delete the journal; nothing is written to the archive before";
    case JournalState::Unknown: return "it is not changed; delete or move it if it is not wanted";
    case JournalState::InUse: return "";
  }
  return "";
}

std::vector<std::string> ignored_beside(const Model& model) {
  constexpr std::size_t kMostNamed = 3;
  std::vector<std::string> texts;
  std::size_t count = 0;
  for (const Shard& shard : model.shards()) {
    if (!shard.archive) continue;
    for (const JournalReport& report : shard.archive->recovered()) {
      count += report.more_ignored;
      if (!report.is_ignored || ++count > kMostNamed) continue;
      texts.push_back(fmt::format("{}: ignored: {}", report.path.string(), explanation_of(report)));
    }
  }
  if (count > kMostNamed)
    texts.push_back(fmt::format("{}: ... and {} more names that are no journals: `stfs recover` lists some",
                                model.path().string(), count - kMostNamed));
  return texts;
}

std::vector<std::string> not_shown_beside(const Model& model) {
  std::vector<std::string> texts;
  for (const Shard& shard : model.shards()) {
    if (!shard.archive || shard.archive->access() != Access::ReadOnly) continue;
    for (const JournalReport& report : shard.archive->recovered()) {
      if (report.is_ignored) continue;
      texts.push_back(fmt::format("{}: {}: a newer commit may not be shown: {}", report.path.string(),
                                  explanation_of(report), advice_on(report)));
    }
  }
  return texts;
}

}  // namespace stfs::tools
