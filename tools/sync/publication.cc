// Follows base_version from version to version.
#include "tools/sync/publication.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <string>
#include <utility>

#include "tools/sync/version_name.h"

namespace stfs::sync {

Result<Publication> Publication::look(const std::filesystem::path& directory, Storage& storage) {
  const auto names = storage.list(directory, "weight_v");
  if (!names && says_gone(names.error())) {
    return fail(ErrorCode::NotFound, ENOENT,
                directory.string() +
                    ": there is no such directory: name the one that holds the published versions, "
                    "weight_v000000 and so on");
  }
  if (!names) return tl::unexpected(Error(names.error()).within(directory.string()));
  Publication publication(storage);
  publication.directory_ = directory;
  for (const std::string& name : *names) {
    if (const auto version = version_of_directory(name)) publication.versions_.push_back(version->number);
  }
  std::ranges::sort(publication.versions_);
  return publication;
}

std::filesystem::path Publication::path_of(std::uint64_t version) const {
  return directory_ / version_directory_name(version);
}

Result<Publication::Way> Publication::way(const std::optional<std::uint64_t>& present,
                                          const std::optional<std::uint64_t>& target) const {
  std::set<std::uint64_t> looked_at;
  if (target) return way_to(present, *target, looked_at);
  std::optional<Error> unfinished;
  for (auto version = versions_.rbegin(); version != versions_.rend(); ++version) {
    if (present && *version <= *present) break;
    if (looked_at.contains(*version)) continue;  // on a way that is not whole
    auto found = way_to(present, *version, looked_at);
    if (!found && is_unfinished(found.error())) {
      if (!unfinished) unfinished = std::move(found).error();
      continue;
    }
    if (found) found->unfinished = std::move(unfinished);
    return found;
  }
  return Way{.versions = {}, .unfinished = std::move(unfinished)};
}

Result<Publication::Way> Publication::way_to(const std::optional<std::uint64_t>& present,
                                             std::uint64_t target, std::set<std::uint64_t>& looked_at) const {
  Way way;
  for (std::uint64_t next = target; !present || next != *present;) {
    if (present && next < *present) {
      return fail(
          ErrorCode::InvalidArgument, EINVAL,
          fmt::format("{}: the way from version {} to the model's version {} goes past it: publish a full "
                      "version, or pull to a new directory",
                      directory_.string(), version_text(target), version_text(*present)));
    }
    if (!std::ranges::binary_search(versions_, next)) {
      // The oldest diffs change a base that was never published: the model that training began with.
      if (!present && !way.versions.empty()) break;
      if (next == target) {
        return fail(ErrorCode::NotFound, EAGAIN,
                    fmt::format("{}: version {} is not published yet: try again later", directory_.string(),
                                version_text(next)));
      }
      return fail(ErrorCode::NotFound, ENOENT,
                  fmt::format("{}: version {} is not published, which version {} changes",
                              directory_.string(), version_text(next), way.versions.back().version().text));
    }
    // Another way has led there, and was not whole.
    if (!looked_at.insert(next).second) return unfinished(path_of(next), "a version before it is not whole");
    auto version = PublishedVersion::open(path_of(next), *storage_, directory_);
    if (!version && says_gone(version.error())) {
      return fail(ErrorCode::NotFound, ESTALE,
                  fmt::format("{}: withdrawn while it was read", path_of(next).string()));
    }
    if (!version) return pass_on(std::move(version));
    const std::optional<VersionNumber> base = version->base_version();
    way.versions.push_back(std::move(*version));
    if (!base) break;
    next = base->number;
  }
  std::ranges::reverse(way.versions);
  return way;
}

}  // namespace stfs::sync
