// Follows base_version from version to version.
#include "tools/sync/publication.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <string>
#include <utility>

#include "core/storage/foreign_mount.h"
#include "core/storage/group_members.h"
#include "tools/sync/version_format.h"

namespace stfs::sync {
namespace {

/// Returns true if other users may make versions there, and can't replace the versions of others.
bool is_shared(std::uint32_t mode) {
  return (mode & S_ISVTX) != 0 && (mode & (S_IWGRP | S_IWOTH)) != 0;
}

}  // namespace

Result<void> check_publisher(std::uint32_t owner, std::uint32_t published_owner,
                             const std::filesystem::path& version, const Storage& storage) {
  if (owner == 0 || is_same_user(owner, storage.user()) || is_same_user(owner, published_owner)) return {};
  return fail(
      ErrorCode::System, EPERM,
      fmt::format("{}: belongs to user {}, who is neither this user ({}) nor the owner of {} ({}): remove it",
                  version.native(), owner, storage.user(), version.parent_path().native(), published_owner));
}

Result<Publication> Publication::look(const std::filesystem::path& directory, Storage& storage,
                                      std::size_t most_steps) {
  const auto names = storage.list(directory, "weight_v");
  if (!names && says_gone(names.error())) {
    return fail(ErrorCode::NotFound, ENOENT,
                directory.string() +
                    ": there is no such directory: name the one that holds the published versions, "
                    "weight_v000000 and so on");
  }
  if (!names) return tl::unexpected(Error(names.error()).within(directory.string()));
  Publication publication(storage, most_steps);
  publication.directory_ = directory;
  auto opened = open_directory(storage, directory, LastLink::Followed);
  RETURN_IF_ERROR(opened);
  if (opened->fd && is_shared(opened->status.mode))
    publication.shared_ = std::make_shared<const OpenDirectory>(std::move(*opened));
  for (const std::string& name : *names) {
    const auto version = version_of_directory(name);
    if (!version) continue;
    const bool counts = publication.check_version(version->number).has_value();
    (counts ? publication.versions_ : publication.left_out_).push_back(version->number);
  }
  std::ranges::sort(publication.versions_);
  std::ranges::sort(publication.left_out_);
  return publication;
}

Result<void> Publication::check_version(std::uint64_t version) const {
  if (!shared_) return {};
  const std::filesystem::path path = path_of(version);
  const auto own = open_entry(shared_->fd.get(), path.filename(), O_PATH, path.native());
  RETURN_IF_ERROR(own);
  struct stat st {};
  if (::fstat(own->get(), &st) != 0) return fail_system(errno, path.native(), "stat");
  return check_publisher(st.st_uid, shared_->status.uid, path, *storage_);
}

std::optional<Error> Publication::why_left_out(std::uint64_t version) const {
  if (!std::ranges::binary_search(left_out_, version)) return std::nullopt;
  auto counts = check_version(version);
  if (counts || says_gone(counts.error())) return std::nullopt;  // changed since look()
  return std::move(counts).error();
}

std::optional<Error> Publication::why_newest_left_out(const std::optional<std::uint64_t>& present) const {
  const bool is_newer = !left_out_.empty() && (!present || left_out_.back() > *present);
  return is_newer ? why_left_out(left_out_.back()) : std::nullopt;
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
    if (found) found->unfinished = unfinished ? std::move(unfinished) : why_newest_left_out(present);
    return found;
  }
  if (!unfinished) unfinished = why_newest_left_out(present);
  return Way{.steps = {}, .unfinished = std::move(unfinished)};
}

Result<PublishedVersion> Publication::open(std::uint64_t version) const {
  auto opened = PublishedVersion::open(path_of(version), *storage_, directory_);
  // If its owner has withdrawn the version, another user may have made a directory of the same name.
  const bool counts = check_version(version).has_value();
  if (counts && (opened || !says_gone(opened.error()))) return opened;
  return fail(ErrorCode::NotFound, ESTALE,
              fmt::format("{}: withdrawn while it was read", path_of(version).string()));
}

Result<PublishedVersion> Publication::open(const Step& step) const {
  auto opened = open(step.version.number);
  const bool is_same = opened && opened->index_hash() == step.index_hash;
  if (is_same || (!opened && !is_unfinished(opened.error()))) return opened;
  return fail(ErrorCode::NotFound, ESTALE,
              fmt::format("{}: published again while it was read", path_of(step.version.number).string()));
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
      if (!present && !way.steps.empty()) break;
      if (const auto left_out = why_left_out(next))
        return fail(ErrorCode::NotFound, next == target ? EAGAIN : ENOENT, left_out->message);
      if (next == target) {
        return fail(ErrorCode::NotFound, EAGAIN,
                    fmt::format("{}: version {} is not published yet: try again later", directory_.string(),
                                version_text(next)));
      }
      return fail(ErrorCode::NotFound, ENOENT,
                  fmt::format("{}: version {} is not published, which version {} changes",
                              directory_.string(), version_text(next), way.steps.back().version.text));
    }
    // Another way has led to this version, and was not whole.
    if (!looked_at.insert(next).second) return unfinished(path_of(next), "a version before it is not whole");
    if (way.steps.size() == most_steps_) {
      return fail(ErrorCode::InvalidArgument, EINVAL,
                  fmt::format("{}: the way to version {} has more than {} versions: publish a full version, "
                              "or pull to an earlier version first",
                              directory_.string(), version_text(target), most_steps_));
    }
    const auto version = open(next);
    RETURN_IF_ERROR(version);
    way.steps.push_back({version->version(), version->base_version(), version->index_hash()});
    const auto& base = way.steps.back().base;
    if (!base) break;
    next = base->number;
  }
  std::ranges::reverse(way.steps);
  return way;
}

}  // namespace stfs::sync
