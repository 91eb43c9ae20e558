#include "tools/cli/gaps.h"

#include <fmt/format.h>

#include "core/base/shell_word.h"
#include "core/commit/compaction.h"
#include "tools/cli/diagnostic.h"
#include "tools/cli/interrupt.h"
#include "tools/cli/progress.h"
#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

std::uint64_t filler_bytes_of(const Archive& archive) {
  std::uint64_t total = 0;
  for (const ByteRange filler : archive.version()->header->content.fillers) total += filler.size_bytes;
  return total;
}

constexpr unsigned kMostChecks = 1000;  // of a plan that only tells a number, about a second

Result<void> check_interrupt() {
  return interrupted() ? fail(ErrorCode::System, EINTR, "interrupted") : Result<void>();
}

std::string why_costly(const ArchiveVersion& version) {
  unsigned checks = 0;
  const auto all = forecast_compaction(version, Gaps::All, [&checks]() -> Result<void> {
    if (++checks > kMostChecks)
      return fail(ErrorCode::System, E2BIG, "closing the gaps would take many steps");
    return check_interrupt();
  });
  if (!all) return all.error().message;
  return fmt::format("closing the gap would move {}", human_size(all->moved_bytes));
}

/// Closes the cheap gaps of one archive. Returns the reason why fillers are left; empty: no filler is left.
std::string close_gaps_of(Archive& archive, bool keeps_space, CommitOptions options, LeftSpace& left,
                          Streams& streams) {
  if (filler_bytes_of(archive) == 0) return {};
  if (keeps_space) return "--keep-space was given";
  if (options.uses_locks && archive.has_other_readers()) {
    const auto reader = archive.other_reader();
    return reader ? fmt::format("process {} has the archive open", *reader)
                  : "another process, or a mount, has the archive open";
  }
  const auto forecast = forecast_compaction(*archive.version(), Gaps::Cheap, check_interrupt);
  if (!forecast) return forecast.error().message;
  Progress progress(streams, forecast->moved_bytes);
  options.on_copy = [&](std::uint64_t size_bytes) -> Result<void> {
    progress.advance(size_bytes);
    return check_interrupt();
  };
  if (interrupted()) return "interrupted";
  if (auto done = close_cheap_gaps(archive, *forecast, options); !done) return done.error().message;
  left.moved_bytes += forecast->moved_bytes;
  return filler_bytes_of(archive) == 0 ? std::string() : why_costly(*archive.version());
}

}  // namespace

LeftSpace close_gaps(const Model& model, const std::vector<std::uint32_t>& shards, bool keeps_space,
                     const CommitOptions& options, Streams& streams) {
  LeftSpace left;
  for (const std::uint32_t shard : shards) {
    Archive& archive = model.archive(shard);
    const std::string why = close_gaps_of(archive, keeps_space, options, left, streams);
    const std::uint64_t filler_bytes = filler_bytes_of(archive);
    left.filler_bytes += filler_bytes;
    if (filler_bytes > 0) report_fillers(archive.path().string(), filler_bytes, why, streams);
  }
  return left;
}

void report_fillers(const std::string& path, std::uint64_t filler_bytes, std::string_view why,
                    Streams& streams) {
  report_failure(streams,
                 fmt::format("{}: {} stay in the file as tensors {}N, which other programs show: {}. "
                             "`stfs compact {}` removes them",
                             path, human_size(filler_bytes), kFillerPrefix, why, shell_word(path)));
}

}  // namespace stfs::tools
