// Calls the parts of a pull that only look.
#include "tools/sync/pull_status.h"

#include <algorithm>
#include <utility>

#include "core/journal/journal_format.h"
#include "core/storage/file.h"
#include "tools/sync/publication.h"
#include "tools/sync/pull.h"
#include "tools/sync/sync_state.h"

namespace stfs::sync {
namespace {

/// Versions may be withdrawn while they are read. Then the call looks again, at most this many times.
constexpr int kMostLooks = 100;

/// Returns the time since the file was written. Nothing if there is no file. The clocks of hosts differ, so a
/// file may seem to be from the future: its age is 0.
std::optional<std::chrono::seconds> age_of(const std::filesystem::path& path) {
  const auto file = system_storage().open(path, Access::ReadOnly);
  if (!file) return std::nullopt;
  const auto status = (*file)->status();
  if (!status) return std::nullopt;
  const std::chrono::system_clock::time_point written{
      std::chrono::duration_cast<std::chrono::system_clock::duration>(
          std::chrono::nanoseconds(status->identity.mtime_ns))};
  const auto age =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now() - written);
  return std::max(age, std::chrono::seconds(0));
}

Result<Publication::Way> way_from(Publication& publication, const std::filesystem::path& published,
                                  const std::optional<std::uint64_t>& present) {
  for (int look = 1;; ++look) {
    auto way = publication.way(present, {});
    if (way || look == kMostLooks || way.error().errno_value != ESTALE) return way;
    auto now = Publication::look(published);
    RETURN_IF_ERROR(now);
    publication = std::move(*now);
  }
}

}  // namespace

Result<PullStatus> look_at_pull(const std::filesystem::path& model, const std::filesystem::path& published) {
  return guard_memory([&]() -> Result<PullStatus> {
    PullStatus status;
    const auto place = place_of_model(model);
    RETURN_IF_ERROR(place);
    status.is_updating = is_sync_locked(*place);
    auto publication = Publication::look(published);
    RETURN_IF_ERROR(publication);
    auto version = read_sync_state(*place);
    RETURN_IF_ERROR(version);
    status.version = std::move(*version);
    if (const auto opened = open_place(*place); opened && status.version)
      status.version_age = age_of(opened->state_file());

    std::optional<std::uint64_t> present;
    if (status.version) present = status.version->number;
    auto way = way_from(*publication, published, present);
    if (way) {
      for (const Publication::Step& step : way->steps) status.missing.push_back(step.version.text);
      if (way->unfinished) status.unfinished = way->unfinished->message;
      if (const auto there = check_beginning(model, published, *way); !there)
        status.problem = there.error().message;
    } else {
      status.problem = way.error().message;
    }
    if (!publication->versions().empty()) {
      const std::uint64_t newest = publication->versions().back();
      status.newest = VersionNumber{version_text(newest), newest};
      status.newest_age = age_of(publication->path_of(newest) / kVersionIndex);
    }
    return status;
  });
}

}  // namespace stfs::sync
