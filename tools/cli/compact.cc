// stfs compact: gives the space of deleted tensors back, in place.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <ostream>
#include <vector>

#include "core/commit/compaction.h"
#include "tools/cli/change.h"
#include "tools/cli/command_line.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/cli/verb.h"
#include "tools/target/target.h"
#include "tools/text/json_document.h"
#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

constexpr const char* kCompactExamples =
    "Tensors move down into the space of deleted ones, and the file becomes as short as it can be. Some "
    "space\n"
    "is needed meanwhile: --dry-run prints how much. It is a series of edits, and after each the archive is "
    "a\n"
    "valid one. After an interrupt, a full disk or a loss of power, the same command goes on. Nobody else "
    "may\n"
    "have the archive open: end its mounts first. The order of the tensors in the file may change.\n"
    "\n"
    "Examples:\n"
    "  stfs compact --dry-run model.safetensors\n"
    "  stfs compact model.safetensors\n"
    "  stfs compact model.safetensors.index.json      all shards, one after the other";

struct CompactRequest {
  std::string target;
  EditOptions options;
};

/// An archive, and the compaction that it needs.
struct ArchiveForecast {
  std::filesystem::path path;
  CompactionForecast forecast;
};

/// The sum of all archives, which are compacted one after the other.
CompactionForecast sum_of(const std::vector<ArchiveForecast>& archives) {
  CompactionForecast sum;
  for (const ArchiveForecast& archive : archives) {
    sum.steps += archive.forecast.steps;
    sum.moved_bytes += archive.forecast.moved_bytes;
    sum.freed_bytes += archive.forecast.freed_bytes;
    sum.needed_bytes = std::max(sum.needed_bytes, archive.forecast.needed_bytes);
  }
  return sum;
}

Result<std::vector<ArchiveForecast>> forecast(const Model& model) {
  if (auto whole = model.check_whole("a compaction"); !whole) {
    return tl::unexpected(std::move(whole).error().within(model.path().string()));
  }
  std::vector<ArchiveForecast> archives;
  for (std::uint32_t at = 0; at < model.shards().size(); ++at) {
    const std::filesystem::path& path = model.shards()[at].path;
    auto found = forecast_compaction(model.version(at));
    if (!found) return tl::unexpected(std::move(found).error().within(path.string()));
    archives.push_back({path, *found});
  }
  return archives;
}

/// Makes all steps of one archive. EINTR: an interrupt was caught; the archive is valid.
Result<void> compact_archive(const std::filesystem::path& path, const CommitOptions& options,
                             const ChangeOptions& change) {
  const auto deadline = std::chrono::steady_clock::now() + options.lock_patience;
  for (;;) {
    if (interrupted()) return fail(ErrorCode::System, EINTR, path.string() + ": interrupted");
    auto archive = Archive::open(path, Access::ReadWrite);
    RETURN_IF_ERROR(archive);
    if (!change.has_no_locks)
      static_cast<void>(is_alone_soon(**archive, change));  // else compact_once() refuses
    auto done = compact_once(**archive, options);
    const bool is_edited = !done && done.error().code == ErrorCode::ArchiveChanged;
    if (is_edited && std::chrono::steady_clock::now() < deadline) continue;
    RETURN_IF_ERROR(done);
    if (!*done) return {};
  }
}

Result<void> compact_all(const std::vector<ArchiveForecast>& archives, const EditOptions& options,
                         Streams& streams) {
  Progress progress(streams, sum_of(archives).moved_bytes);
  CommitOptions commit = commit_options_of(options.change);
  commit.on_copy = [&](std::uint64_t size_bytes) -> Result<void> {
    progress.advance(size_bytes);
    if (!interrupted()) return {};
    return fail(ErrorCode::System, EINTR, "interrupted");
  };
  for (const ArchiveForecast& archive : archives) {
    if (archive.forecast.steps == 0) continue;
    auto done = compact_archive(archive.path, commit, options.change);
    if (!done) {
      done.error().message += "; the archive is valid, and the same command goes on from here";
      return done;
    }
  }
  return {};
}

std::string plan_text(const CompactionForecast& sum) {
  return fmt::format("moves {} in {}, needs up to {} of disk space meanwhile, frees {}",
                     human_size(sum.moved_bytes), counted(sum.steps, "step"), human_size(sum.needed_bytes),
                     human_size(sum.freed_bytes));
}

Json json_of_forecast(const std::filesystem::path& path, const CompactionForecast& sum, bool is_changed) {
  Json document = json_document();
  document["path"] = json_path(path);
  document["changed"] = is_changed;
  document["steps"] = sum.steps;
  document["moved_bytes"] = sum.moved_bytes;
  document["needed_bytes"] = sum.needed_bytes;
  document["freed_bytes"] = sum.freed_bytes;
  return document;
}

}  // namespace

int compact(const Arguments& arguments, Streams& streams) {
  CompactRequest request;
  const EditOptions& options = request.options;
  CommandLine line("compact", "Give the space of deleted tensors back, without a second copy.",
                   kCompactExamples);
  line.positional(request.target, "TARGET", "Archive, sharded model, or root of a mount.");
  add_edit_options(line, request.options);
  if (const auto code = line.parse(arguments, streams)) return *code;

  std::filesystem::path path;
  std::vector<ArchiveForecast> archives;
  {
    // Closed at the end of this block, because this process must not be a reader of the archives.
    const auto change = open_for_edit(request.target, options, streams);
    if (!change) return kFailed;
    path = change->model().path();
    auto found = forecast(change->model());
    if (!found) return report_failure(streams, found.error().message);
    archives = std::move(*found);
  }
  const CompactionForecast sum = sum_of(archives);
  const bool is_compact = sum.steps == 0;
  const bool is_changed = !is_compact && !options.is_dry_run;
  const InterruptGuard guard;
  if (!options.json) {
    streams.out << printable(request.target) << ": "
                << (is_compact ? "nothing to free, the archive is compact" : plan_text(sum)) << '\n';
    streams.out.flush();
  }
  if (is_changed) {
    if (auto done = compact_all(archives, options, streams); !done) {
      return report_failure(streams, done.error().message);
    }
  }
  if (options.json) {
    write_json(json_of_forecast(path, sum, is_changed), streams.out);
  } else if (is_changed) {
    streams.out << fmt::format("freed {}\n", human_size(sum.freed_bytes));
  }
  streams.out.flush();
  return streams.out ? kDone : kFailed;
}

}  // namespace stfs::tools
