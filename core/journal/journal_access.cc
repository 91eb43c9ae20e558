// Implements the tables of journal_access.h.
#include "core/journal/journal_access.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

namespace stfs {
namespace {

constexpr std::uint32_t kReadWriteForAll = 0666;
constexpr std::uint32_t kReadWriteForOwner = 0600;

/// Whether an owner or a group may not be given. EINVAL: a user namespace has no number for that group.
bool may_not_be_given(const Error& error) {
  return is_forbidden(error) || error.errno_value == EINVAL;
}

}  // namespace

Result<void> give_access(Storage& storage, File& journal, const FileStatus& archive) {
  auto own = journal.status();
  if (!own) return pass_on(std::move(own));
  std::uint32_t permissions = (archive.mode & kReadWriteForAll) | kReadWriteForOwner;
  const bool is_root = storage.user() == 0;
  const std::uint32_t owner = is_root ? archive.uid : own->uid;
  if (own->uid != owner || own->gid != archive.gid) {
    auto given = journal.set_owner(owner, archive.gid);
    // Root without its capabilities, or on another host's disk, may do no more than other users.
    if (!given && may_not_be_given(given.error()) && owner != own->uid && own->gid != archive.gid) {
      given = journal.set_owner(own->uid, archive.gid);
    }
    if (!given && !may_not_be_given(given.error())) return given;
    own = journal.status();
    if (!own) return pass_on(std::move(own));
    // The journal's group has no more right to the archive than others have, so it gets their bits.
    if (own->gid != archive.gid) permissions = (permissions & 0707U) | ((permissions & 0007U) << 3U);
  }
  if ((own->mode & 07777U) == permissions) return {};
  return journal.set_mode(permissions);
}

bool is_believed(const FileStatus& journal, const FileStatus& archive, const FileStatus& directory,
                 std::uint32_t user) {
  if (journal.uid == 0 || journal.uid == archive.uid || journal.uid == user) return true;
  if ((archive.mode & S_IWOTH) != 0) return true;
  if ((archive.mode & S_IWGRP) == 0 || journal.gid != archive.gid) return false;
  const bool may_be_inherited = directory.gid == archive.gid && (directory.mode & S_IWOTH) != 0;
  return !may_be_inherited;
}

std::string settlers_of(const FileStatus& journal) {
  return journal.uid == 0 ? "root" : fmt::format("user {} or root", journal.uid);
}

std::string settling_advice(const FileStatus& journal, std::uint32_t user) {
  // Root is stopped by a server of files, by a container, or by a read-only mount.
  if (user == 0 && journal.uid == 0) return "run `stfs recover` on a host whose root may write it";
  if (user == 0) {
    return fmt::format("run `stfs recover` as user {}, or on a host whose root may write it", journal.uid);
  }
  if (user == journal.uid) return "allow it with `chmod u+rw`, then run `stfs recover`";
  return fmt::format("run `stfs recover` as {}", settlers_of(journal));
}

std::string disbelief_advice(const FileStatus& journal) {
  return fmt::format(
      "if user {} has a right to write the archive, run `stfs recover` as that user; else delete it",
      journal.uid);
}

}  // namespace stfs
