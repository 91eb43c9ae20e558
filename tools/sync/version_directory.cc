// Names and syncs files, in the order that the header describes.
#include "tools/sync/version_directory.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "core/base/absolute_path.h"
#include "core/format/json_string.h"
#include "core/model/model_directory.h"
#include "core/storage/group_members.h"
#include "core/storage/lock_holder.h"
#include "core/storage/made_directory.h"
#include "tools/sync/publication.h"
#include "tools/sync/version_format.h"

namespace stfs::sync {
namespace {

constexpr std::size_t kLeastDigits = 5;

// "":{"dtype":"U8","shape":[],"data_offsets":[,]}, and "":"", with three numbers and a checksum.
constexpr std::uint64_t kEntryBytes = 64 + 3 * 20 + 64 + 8;
constexpr std::uint64_t kAlignment = 8;  // like the padding of the reference library

/// Removes the decimal digits at the front.
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

/// Returns true if a publisher may have left the file: model-00001-of-00002.safetensors, or this or an index
/// with .tmp behind the name.
bool is_leftover(std::string_view name) {
  const bool is_temporary = name.ends_with(kTemporaryEnd);
  if (is_temporary) name.remove_suffix(kTemporaryEnd.size());
  if (name == kVersionIndex) return is_temporary;
  return take_word(name, "model-") && take_digits(name) && take_word(name, "-of-") && take_digits(name) &&
         name == kArchiveSuffix;
}

/// Makes the file that later gets the name `path`.
Result<NewFile> make_file(const std::filesystem::path& path, mode_t mode, Storage& storage) {
  return NewFile::create_as(path.native() + std::string(kTemporaryEnd), path, mode, storage);
}

/// @param path  for messages.
Result<UniqueFd> lock_directory(const OpenDirectory& own, const std::filesystem::path& path,
                                Storage& storage) {
  // The path of an open directory is a link of /proc, which is not followed as the last component.
  const std::filesystem::path itself = own.fd ? own.file(".") : own.path;
  auto lock = storage.try_flock(itself, LockKind::Exclusive);
  if (!lock) return lacks_locks(lock.error()) ? Result<UniqueFd>() : pass_on(std::move(lock));
  if (*lock) return std::move(**lock);
  return fail(ErrorCode::Busy, EBUSY,
              fmt::format("{}: another publisher writes this version: {} holds a lock on it", path.native(),
                          holder_text(find_flock_holder(itself))));
}

}  // namespace

std::uint64_t most_header_bytes(std::string_view name) {
  std::string quoted;
  append_json_string(quoted, name);
  return kEntryBytes + 2 * quoted.size();
}

Result<void> VersionShard::append(std::span<const std::byte> bytes) {
  entry_bytes_ += bytes.size();
  return file_.append(bytes);
}

void VersionShard::end_entry(std::string_view name, std::string_view checksum) {
  data_bytes_ += entry_bytes_;
  entries_.push_back({std::string(name), Dtype::U8, {std::exchange(entry_bytes_, 0)}});
  checksums_.emplace_back(name, checksum);
}

Result<void> VersionShard::drop_entry() {
  entry_bytes_ = 0;
  return file_.cut(room_bytes_ + data_bytes_);
}

Result<void> VersionShard::settle() {
  auto json = format_header_json(entries_, checksums_);
  if (!json) return tl::unexpected(Error(json.error()).within(path_.native()));
  const std::string header = pad_header(std::move(*json), room_bytes_);
  RETURN_IF_ERROR(file_.overwrite(0, std::as_bytes(std::span(header))));
  return file_.settle();
}

Result<std::unique_ptr<VersionDirectory>> VersionDirectory::create(const std::filesystem::path& published,
                                                                   std::uint64_t version, Storage& storage) {
  const std::string name = version_directory_name(version);
  const auto is_published_new = storage.make_directory(published);
  RETURN_IF_ERROR(is_published_new);
  if (*is_published_new) {
    RETURN_IF_ERROR(storage.sync_directory(directory_of(published)));
  }
  auto above = open_directory(storage, published, LastLink::Followed);
  RETURN_IF_ERROR(above);
  const auto shown = [&](const Error& error) {
    return tl::unexpected(above->with_shown_paths(error, published));
  };
  const auto is_made = storage.make_directory(above->file(name));
  if (!is_made) return shown(is_made.error());
  // A link leads to another directory, whose files are not an interrupted publisher's.
  auto own = open_directory(storage, above->file(name));
  if (!own) return shown(own.error());
  RETURN_IF_ERROR(check_publisher(own->status.uid, above->status.uid, published / name, storage));
  if (*is_made && own->fd) mark_made_directory(own->fd.get(), above->fd.get(), name);
  auto lock = lock_directory(*own, published / name, storage);
  RETURN_IF_ERROR(lock);  // another publisher's directory stays
  std::unique_ptr<VersionDirectory> directory(
      new VersionDirectory(storage, published / name, std::move(*above), std::move(*own)));
  directory->is_made_ = *is_made;
  directory->lock_ = std::move(*lock);
  RETURN_IF_ERROR(directory->told(directory->begin()));
  return directory;
}

Result<void> VersionDirectory::begin() {
  const auto names = storage_.list(own_.path, "");
  RETURN_IF_ERROR(names);
  if (std::ranges::find(*names, kVersionIndex) != names->end()) {
    // The publisher that has named the index may have died before the names were on stable storage.
    for (const OpenDirectory* named : {&own_, &published_}) {
      RETURN_IF_ERROR(storage_.sync_directory(named->path));
    }
    return fail(ErrorCode::InvalidArgument, EEXIST, path_.native() + ": this version is published already");
  }
  const auto published = storage_.status(published_.path);
  RETURN_IF_ERROR(published);
  mode_ = (published->mode & 0666U) | 0600U;
  if (!std::ranges::any_of(*names, is_leftover)) return {};
  RETURN_IF_ERROR(check_made_by_publisher());
  // The removal of an index must be durable before its shards are removed. Otherwise a loss of power could
  // leave the index without them.
  RETURN_IF_ERROR(storage_.sync_directory(own_.path));
  for (const std::string& name : *names) {
    if (!is_leftover(name)) continue;
    RETURN_IF_ERROR(storage_.remove(own_.file(name)));
  }
  return {};
}

Result<void> VersionDirectory::check_made_by_publisher() const {
  if (!own_.fd || !published_.fd) return {};  // a storage of a test
  const auto is_writer = [&](std::uint32_t user) { return user == 0 || is_same_user(user, storage_.user()); };
  const bool is_shared = (published_.status.mode & (S_IWGRP | S_IWOTH)) != 0;
  if (!is_shared && is_writer(published_.status.uid)) return {};  // no other user moves directories in it
  if (made_mark_of(own_.fd.get(), published_.fd.get(), path_.filename()) == MadeMark::Valid) return {};
  return fail(
      ErrorCode::System, EPERM,
      fmt::format("{}: has files like those of an interrupted publisher, but no publisher has made the "
                  "directory under this name, and another user may have moved it there: look at its "
                  "files, then remove it",
                  path_.native()));
}

Result<void> VersionDirectory::told(Result<void> done) const {
  if (done) return done;
  Error error = own_.with_shown_paths(std::move(done).error(), path_);
  return tl::unexpected(published_.with_shown_paths(std::move(error), path_.parent_path()));
}

VersionDirectory::~VersionDirectory() {
  if (is_finished_) return;
  const bool has_index = !named_.empty() && named_.front().filename() == kVersionIndex;
  if (has_index) {
    // After a loss of power the index may be there again, and then needs its shards.
    if (!remove_if_there(storage_, named_.front()) || !storage_.sync_directory(own_.path)) return;
    named_.erase(named_.begin());
  }
  for (const std::filesystem::path& path : named_) static_cast<void>(storage_.remove(path));
  // Fails if another program has put a file there.
  if (is_made_) static_cast<void>(storage_.remove_directory(published_.file(path_.filename())));
}

std::string VersionDirectory::shard_name(std::size_t number, std::size_t count) {
  return fmt::format("model-{:05}-of-{:05}{}", number, count, kArchiveSuffix);
}

Result<VersionShard> VersionDirectory::new_shard(std::size_t number, std::size_t count,
                                                 std::uint64_t header_bytes) const {
  constexpr std::uint64_t kFrameBytes = 64;  // the length, the braces, and "__metadata__"
  const std::uint64_t room_bytes = (header_bytes + kFrameBytes + kAlignment - 1) / kAlignment * kAlignment;
  std::filesystem::path path = own_.file(shard_name(number, count));
  auto file = make_file(path, mode_, storage_);
  RETURN_IF_ERROR(file);
  const std::string spaces(static_cast<std::size_t>(room_bytes), ' ');
  RETURN_IF_ERROR(file->append(std::as_bytes(std::span(spaces))));
  return VersionShard(std::move(path), std::move(*file), room_bytes);
}

Result<void> VersionDirectory::finish(std::span<VersionShard> shards, std::string_view index) {
  for (std::size_t at = 0; at < shards.size(); ++at) {
    const std::filesystem::path path = own_.file(shard_name(at + 1, shards.size()));
    RETURN_IF_ERROR(shards[at].file_.finish_unsynced(path));
    named_.push_back(path);
  }
  RETURN_IF_ERROR(storage_.sync_directory(own_.path));
  const std::filesystem::path path = own_.path / kVersionIndex;
  auto file = make_file(path, mode_, storage_);
  RETURN_IF_ERROR(file);
  RETURN_IF_ERROR(file->append(std::as_bytes(std::span(index))));
  RETURN_IF_ERROR(file->settle());
  named_.insert(named_.begin(), path);  // a failure after this line removes the index first
  RETURN_IF_ERROR(file->finish());
  RETURN_IF_ERROR(storage_.sync_directory(published_.path));
  is_finished_ = true;
  return {};
}

}  // namespace stfs::sync
