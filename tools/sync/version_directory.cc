// Names and syncs, in the order that the header tells.
#include "tools/sync/version_directory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "core/base/absolute_path.h"
#include "core/storage/file.h"
#include "core/storage/lock_holder.h"
#include "core/storage/new_file.h"
#include "core/storage/open_directory.h"
#include "tools/sync/version_name.h"

namespace stfs::sync {
namespace {

constexpr std::string_view kTemporaryEnd = ".tmp";
constexpr std::string_view kShardEnd = ".safetensors";
constexpr std::size_t kLeastDigits = 5;

/// Takes decimal digits off the front.
bool take_digits(std::string_view& text) {
  const std::size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
  text.remove_prefix(count);
  return count >= kLeastDigits;
}

bool take_word(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

/// Whether a publisher may have left the file: model-00001-of-00002.safetensors, or that or an index with
/// .tmp behind it.
bool is_leftover(std::string_view name) {
  const bool is_temporary = name.ends_with(kTemporaryEnd);
  if (is_temporary) name.remove_suffix(kTemporaryEnd.size());
  if (name == kVersionIndex) return is_temporary;
  return take_word(name, "model-") && take_digits(name) && take_word(name, "-of-") && take_digits(name) &&
         name == kShardEnd;
}

/// @param path  for messages.
Result<UniqueFd> lock_directory(const OpenDirectory& own, const std::filesystem::path& path,
                                Storage& storage) {
  auto lock = storage.try_flock(own.path, LockKind::Exclusive);
  if (!lock) return lacks_locks(lock.error()) ? Result<UniqueFd>() : pass_on(std::move(lock));
  if (*lock) return std::move(**lock);
  return fail(ErrorCode::Busy, EBUSY,
              fmt::format("{}: another publisher writes this version: {} holds a lock on it", path.native(),
                          holder_text(find_flock_holder(own.path))));
}

/// Fails unless this process's user, root or the owner of the published directory has made the directory: any
/// other owner could change the version, and read it whatever its mode.
Result<void> check_owner(const OpenDirectory& own, const OpenDirectory& above,
                         const std::filesystem::path& path, const Storage& storage) {
  const std::uint32_t owner = own.status.uid;
  if (owner == 0 || owner == storage.user() || owner == above.status.uid) return {};
  return fail(
      ErrorCode::System, EPERM,
      fmt::format("{}: belongs to user {}, who is neither this user ({}) nor the owner of {} ({}): remove it",
                  path.native(), owner, storage.user(), path.parent_path().native(), above.status.uid));
}

}  // namespace

Result<VersionDirectory> VersionDirectory::create(const std::filesystem::path& published,
                                                  std::uint64_t version, Storage& storage) {
  const std::string name = version_directory_name(version);
  const auto is_published_new = storage.make_directory(published);
  if (!is_published_new) return tl::unexpected(is_published_new.error());
  if (*is_published_new) {
    if (auto ok = storage.sync_directory(directory_of(published)); !ok) return pass_on(std::move(ok));
  }
  auto above = open_directory(storage, published, LastLink::Followed);
  if (!above) return tl::unexpected(above.error());
  const auto shown = [&](const Error& error) {
    return tl::unexpected(above->with_shown_paths(error, published));
  };
  const auto is_made = storage.make_directory(above->file(name));
  if (!is_made) return shown(is_made.error());
  // What a link leads to is another directory, whose files are not an interrupted publisher's.
  auto own = open_directory(storage, above->file(name));
  if (!own) return shown(own.error());
  if (auto checked = check_owner(*own, *above, published / name, storage); !checked)
    return pass_on(std::move(checked));
  VersionDirectory directory(storage, published / name, std::move(*above), std::move(*own));
  directory.is_made_ = *is_made;
  auto lock = lock_directory(directory.own_, directory.path_, storage);
  // Another publisher's directory stays.
  if (!lock) directory.is_made_ = false;
  if (!lock) return pass_on(std::move(lock));
  directory.lock_ = std::move(*lock);
  if (auto begun = directory.told(directory.begin()); !begun) return pass_on(std::move(begun));
  return directory;
}

Result<void> VersionDirectory::begin() {
  const auto names = storage_->list(own_.path, "");
  if (!names) return tl::unexpected(names.error());
  if (std::ranges::find(*names, kVersionIndex) != names->end()) {
    // Whoever has named the index may have died before the names were on stable storage.
    for (const OpenDirectory* named : {&own_, &published_}) {
      if (auto ok = storage_->sync_directory(named->path); !ok) return ok;
    }
    return fail(ErrorCode::InvalidArgument, EEXIST, path_.native() + ": this version is published already");
  }
  const auto published = storage_->status(published_.path);
  if (!published) return tl::unexpected(published.error());
  mode_ = (published->mode & 0666U) | 0600U;
  // The index is gone for good before its shards go: else a loss of power could leave it without them.
  if (std::ranges::any_of(*names, is_leftover)) {
    if (auto ok = storage_->sync_directory(own_.path); !ok) return ok;
  }
  for (const std::string& name : *names) {
    if (!is_leftover(name)) continue;
    if (auto ok = storage_->remove(own_.file(name)); !ok) return ok;
  }
  return {};
}

Result<void> VersionDirectory::told(Result<void> done) const {
  if (done) return done;
  Error error = own_.with_shown_paths(std::move(done).error(), path_);
  return tl::unexpected(published_.with_shown_paths(std::move(error), path_.parent_path()));
}

VersionDirectory::VersionDirectory(VersionDirectory&& other) noexcept
    : storage_(other.storage_),
      path_(std::exchange(other.path_, {})),
      published_(std::move(other.published_)),
      own_(std::move(other.own_)),
      mode_(other.mode_),
      is_made_(other.is_made_),
      is_finished_(other.is_finished_),
      lock_(std::move(other.lock_)),
      named_(std::move(other.named_)) {}

VersionDirectory::~VersionDirectory() {
  if (path_.empty() || is_finished_) return;
  const bool has_index = !named_.empty() && named_.front().filename() == kVersionIndex;
  if (has_index) {
    // It may be there again after a loss of power, and then needs its shards.
    if (!remove_if_there(*storage_, named_.front()) || !storage_->sync_directory(own_.path)) return;
    named_.erase(named_.begin());
  }
  for (const std::filesystem::path& path : named_) static_cast<void>(storage_->remove(path));
  // Fails where somebody else has put a file.
  if (is_made_) static_cast<void>(storage_->remove_directory(published_.file(path_.filename())));
}

std::filesystem::path VersionDirectory::shard_path(std::size_t number, std::size_t count) const {
  return own_.path / fmt::format("model-{:05}-of-{:05}{}", number, count, kShardEnd);
}

Result<void> VersionDirectory::finish(std::span<VersionShard> shards, std::string_view index, mode_t mode) {
  return told(finish_unguarded(shards, index, mode));
}

Result<void> VersionDirectory::finish_unguarded(std::span<VersionShard> shards, std::string_view index,
                                                mode_t mode) {
  for (std::size_t at = 0; at < shards.size(); ++at) {
    const std::filesystem::path path = shard_path(at + 1, shards.size());
    if (auto ok = shards[at].name_as(path); !ok) return ok;
    named_.push_back(path);
  }
  if (auto ok = storage_->sync_directory(own_.path); !ok) return ok;
  const std::filesystem::path path = own_.path / kVersionIndex;
  auto file = NewFile::create_as(path.native() + std::string(kTemporaryEnd), path, mode, *storage_);
  if (!file) return pass_on(std::move(file));
  if (auto ok = file->append(std::as_bytes(std::span(index))); !ok) return ok;
  if (auto ok = file->settle(); !ok) return ok;
  named_.insert(named_.begin(), path);  // a failure from here on removes the index first
  if (auto ok = file->finish(); !ok) return ok;
  if (auto ok = storage_->sync_directory(published_.path); !ok) return ok;
  is_finished_ = true;
  return {};
}

}  // namespace stfs::sync
