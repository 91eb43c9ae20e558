// stfs recover: finishes the commits of an interrupted writer, and reports the journals that it cannot
// finish.
//
// The verb does not parse the archive, because the interrupted writer may have been changing the header.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <system_error>
#include <vector>

#include "core/base/absolute_path.h"
#include "core/journal/journal_file.h"
#include "core/journal/recovery.h"
#include "core/model/model.h"
#include "core/model/model_directory.h"
#include "core/model/neighbours.h"
#include "core/storage/open_directory.h"
#include "core/storage/trusted_links.h"
#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/verb.h"
#include "tools/target/journal_text.h"
#include "tools/target/target.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

constexpr const char* kRecoverExamples =
    "A writer that was killed after its commit leaves a journal, .NAME.stj.ID, beside the archive. Every\n"
    "program that opens the archive for writing applies the journal. This verb does the same, and explains\n"
    "each journal. The exit code is 0 if nothing is left to do, else 1.\n"
    "\n"
    "Examples:\n"
    "  stfs recover model.safetensors\n"
    "  stfs recover --dry-run model.safetensors          look and explain only\n"
    "  stfs recover --force copy.safetensors             apply a journal that came with a copy of the "
    "archive";

struct RecoverRequest {
  std::string target;
  RecoveryOptions options;
  bool json = false;
};

using Reports = std::vector<JournalReport>;

/// The path that the user named, and the archive or index behind it.
struct RecoverTarget {
  std::filesystem::path named;
  TargetPath located;
};

/// Checks that no other user has chosen the file: by a link (trusted_links.h), or by a mount.
/// @param named  the path of the opened archive, before links were resolved.
Result<void> check_way(const std::filesystem::path& named, const File& opened, const RecoverTarget& target) {
  auto behind = system_storage().open_behind(named, Links::Trusted);
  RETURN_IF_ERROR(behind);
  const auto there = (*behind)->status();
  const auto status = opened.status();
  if (!there || !status) return tl::unexpected(there ? status.error() : there.error());
  if (!there->identity.same_file(status->identity)) {
    return fail(ErrorCode::ArchiveChanged, ESTALE, named.string() + ": was replaced while it was opened");
  }
  return check_naming_mount(target.located, target.named, status->uid);
}

/// Recovers beside one file. The file may have any content by now, so only its kind is checked.
/// @param path  `named` with links resolved: journals are beside the real file.
Result<Reports> recover_at(const std::filesystem::path& named, const std::filesystem::path& path,
                           const RecoverTarget& target, const RecoveryOptions& options) {
  auto beside = storage_beside(system_storage(), path, nullptr);
  RETURN_IF_ERROR(beside);
  Storage& storage = **beside;
  auto has_journal = has_journal_beside(storage, path);
  RETURN_IF_ERROR(has_journal);
  // On overlayfs, opening for writing copies the file. Open for writing only if there is a journal to settle.
  const bool is_to_change = *has_journal && !options.is_dry_run;
  const Access access = is_to_change ? Access::ReadWrite : Access::ReadOnly;
  auto archive = storage.open(path, access);
  RETURN_IF_ERROR(archive);
  if (is_to_change) {
    RETURN_IF_ERROR(check_way(named, **archive, target));
  }
  RecoveryOptions how = options;
  how.wait_until = deadline_in(kRecoveryPatience);  // for each archive
  return stfs::recover(storage, path, **archive, how);
}

std::string action_text(const JournalReport& report, bool is_dry_run) {
  switch (report.action) {
    case JournalAction::Applied: return "applied";
    case JournalAction::Removed: return "removed";
    case JournalAction::None: break;
  }
  if (report.is_left_void) return "made void";
  if (is_dry_run && report.state == JournalState::Committed) return "would be applied";
  if (is_dry_run && report.state == JournalState::Unfinished) return "would be removed";
  return "not changed";
}

std::string_view action_name(JournalAction action) {
  switch (action) {
    case JournalAction::Applied: return "applied";
    case JournalAction::Removed: return "removed";
    case JournalAction::None: return "none";
  }
  return "none";
}

/// Returns the number of files beside the archives that are no journals, and have no report.
std::uint64_t more_ignored_in(const Reports& reports) {
  std::uint64_t more = 0;
  for (const JournalReport& report : reports) more += report.more_ignored;
  return more;
}

void print_text(const RecoverRequest& request, const Reports& reports, std::ostream& out) {
  if (reports.empty()) out << printable(request.target) << ": no journal, nothing to recover\n";
  for (const JournalReport& report : reports) {
    out << printable(report.path.string()) << '\n';
    out << "  state   " << name_of(report.state) << ": " << printable(explanation_of(report)) << '\n';
    if (report.ranges > 0) {
      out << fmt::format("  covers  {} of the archive, {}\n", counted(report.ranges, "range"),
                         human_size(report.size_bytes));
    }
    out << "  action  " << action_text(report, request.options.is_dry_run);
    if (report.is_left_void) out << ": " << left_void_text(report);
    out << '\n';
  }
}

void print_json(const std::filesystem::path& path, const RecoverRequest& request, const Reports& reports,
                std::ostream& out) {
  Json document = json_document();
  document["path"] = json_path(path);
  document["dry_run"] = request.options.is_dry_run;
  document["left_undone"] =
      static_cast<std::uint64_t>(std::ranges::count_if(reports, is_left_undone)) + more_ignored_in(reports);
  document["journals"] = Json::array();
  for (const JournalReport& report : reports) {
    document["journals"].push_back({{"path", json_path(report.path)},
                                    {"state", name_of(report.state)},
                                    {"explanation", explanation_of(report)},
                                    {"ranges", report.ranges},
                                    {"size_bytes", report.size_bytes},
                                    {"action", action_name(report.action)},
                                    {"is_left_void", report.is_left_void}});
  }
  write_json(document, out);
}

/// Returns the archive itself, or the shards of an index. Hints at other models beside the index.
Result<std::vector<std::filesystem::path>> archives_of(const std::filesystem::path& named, Streams& streams) {
  if (!is_directory_of_models(named) && !named.string().ends_with(kModelIndexSuffix)) {
    return std::vector{named};
  }
  auto model = Model::open(named, {});
  RETURN_IF_ERROR(model);
  if (const std::string text = models_beside_text(**model); !text.empty()) report_failure(streams, text);
  std::vector<std::filesystem::path> paths;
  for (const Shard& shard : (*model)->shards()) paths.push_back(shard.path);
  return paths;
}

}  // namespace

int recover(const Arguments& arguments, Streams& streams) {
  RecoverRequest request;
  CommandLine line("recover", "Finish the commits of interrupted writers.", kRecoverExamples);
  line.positional(request.target, "TARGET", "Archive, sharded model, or path inside a mount.");
  line.flag(request.options.is_dry_run, "-n,--dry-run", "Look and explain. Change nothing.");
  line.flag(request.options.is_forced, "--force",
            "Apply a foreign journal too, if it knows the content of every block.");
  line.flag(request.json, "--json", "Print the result as a JSON object.");
  if (const auto code = line.parse(arguments, streams)) return *code;

  if (is_url(request.target))
    return report_failure(streams, request.target + ": is on a web server, so no commit was left there");
  const auto located = locate_target(request.target, Use::Model);
  if (!located) return report_failure(streams, located.error().message);
  if (is_url(located->archive)) {
    return report_failure(streams,
                          located->archive.string() + ": is on a web server, so no commit was left there");
  }
  const auto archives = archives_of(located->archive, streams);
  if (!archives) return report_failure(streams, archives.error().message);
  Reports reports;
  for (const std::filesystem::path& archive : *archives) {
    const auto there = follow_all_links(archive);
    if (!there) return report_failure(streams, there.error().message);
    const std::filesystem::path path = real_path_of(there->fd.get(), archive);
    auto found = recover_at(archive, path, {request.target, *located}, request.options);
    if (!found) return report_failure(streams, found.error().message);
    std::ranges::move(*found, std::back_inserter(reports));
  }
  if (request.json) {
    print_json(located->archive, request, reports, streams.out);
  } else {
    print_text(request, reports, streams.out);
  }
  int code = kDone;
  for (const JournalReport& report : reports) {
    if (!is_left_undone(report)) continue;
    code = report_failure(
        streams, fmt::format("{}: {}: {}", report.path.string(), name_of(report.state), advice_on(report)));
  }
  if (const std::uint64_t more = more_ignored_in(reports); more > 0) {
    report_failure(streams, fmt::format("{}: ... and {} more names that are no journals: delete them",
                                        request.target, more));
  }
  return streams.out ? code : kFailed;
}

}  // namespace stfs::tools
