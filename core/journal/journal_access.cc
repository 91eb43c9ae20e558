#include "core/journal/journal_access.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

#include "core/storage/group_members.h"
#include "core/storage/permissions.h"

namespace stfs {
namespace {

constexpr std::uint32_t kReadWriteForAll = 0666;
constexpr std::uint32_t kReadWriteForOwner = 0600;

/// Returns true if this process may not give the file to that owner or group. EINVAL: the user namespace has
/// no number for it.
bool may_not_be_given(const Error& error) {
  return is_forbidden(error) || error.errno_value == EINVAL;
}

/// Gives the group the same bits as others, for a file with a group other than the archive's.
std::uint32_t without_group(std::uint32_t permissions) {
  return (permissions & 0707U) | ((permissions & 0007U) << 3U);
}

/// Adds the right to search a directory to each class of users that may read it.
std::uint32_t with_search(std::uint32_t permissions) {
  return permissions | ((permissions & 0444U) >> 2U);
}

/// Returns nothing if the user may write the archive. Otherwise returns the rest of the explanation, which
/// may be empty.
std::optional<std::string> why_not_believed_owner(const Storage& storage, std::uint32_t owner,
                                                  const FileStatus& archive) {
  if (owner == 0 || owner == storage.user() || (archive.mode & S_IWOTH) != 0) return std::nullopt;
  // Also if the archive shows the same number: the two files may have different owners.
  if (is_of_many(storage, owner)) return ": this user namespace does not have that user";
  if (owner == archive.uid) return std::nullopt;
  if ((archive.mode & S_IWGRP) == 0) return "";
  switch (membership_of(storage, owner, archive.gid)) {
    case Membership::Member: return std::nullopt;
    case Membership::NoMember: return "";
    case Membership::Unknown: break;
  }
  return fmt::format(": this host does not know whether that user is in group {}", archive.gid);
}

/// Returns true if a user who may not write the archive may write the file.
bool has_other_writers(const FileStatus& found, int descriptor, const FileStatus& archive) {
  if ((archive.mode & S_IWOTH) != 0) return false;
  if ((found.mode & S_IWOTH) != 0) return true;
  if ((found.mode & S_IWGRP) == 0) return false;
  const bool may_group = found.gid == archive.gid && (archive.mode & S_IWGRP) != 0;
  // If there is a list, the group's bits are a mask: single users may have them.
  return !may_group || has_access_list(descriptor);
}

}  // namespace

Result<FileStatus> give_access(Storage& storage, File& journal, const FileStatus& archive) {
  auto own = journal.status();
  RETURN_IF_ERROR(own);
  std::uint32_t permissions = (archive.mode & kReadWriteForAll) | kReadWriteForOwner;
  const bool is_root = storage.user() == 0;
  const std::uint32_t owner = is_root ? archive.uid : own->uid;
  if (own->uid != owner || own->gid != archive.gid) {
    auto given = journal.set_owner(owner, archive.gid);
    // Root without its capabilities, or on another host's disk, may have only the rights of other users.
    if (!given && may_not_be_given(given.error()) && owner != own->uid && own->gid != archive.gid) {
      given = journal.set_owner(own->uid, archive.gid);
    }
    if (!given && !may_not_be_given(given.error())) return pass_on(std::move(given));
    own = journal.status();
    RETURN_IF_ERROR(own);
    if (own->gid != archive.gid) permissions = without_group(permissions);
  }
  // Without the group's bits, the entries of a list have no effect.
  if ((permissions & 0070U) != 0) drop_access_list(journal.descriptor());
  if ((own->mode & 07777U) == permissions) return own;
  RETURN_IF_ERROR(journal.set_mode(permissions));
  return own;
}

void give_directory_access(Storage& storage, const OpenDirectory& made, const FileStatus& archive) {
  const int directory = made.fd.get();
  struct stat own {};
  if (!made.fd || ::fstat(directory, &own) != 0) return;
  mode_t permissions = (archive.mode & kReadWriteForAll) | kReadWriteForOwner;
  const uid_t owner = storage.user() == 0 ? archive.uid : own.st_uid;
  if (own.st_uid != owner || own.st_gid != archive.gid) {
    if (::fchown(directory, owner, archive.gid) != 0 && ::fchown(directory, own.st_uid, archive.gid) != 0)
      permissions = without_group(permissions);
  }
  drop_access_list(directory);
  static_cast<void>(::fchmod(directory, with_search(permissions)));
}

std::uint32_t directory_access_of_others(const FileStatus& archive, std::uint32_t gid) {
  const std::uint32_t permissions = archive.mode & kReadWriteForAll;
  return with_search(gid == archive.gid ? permissions : without_group(permissions)) & 0077U;
}

std::optional<Disbelief> why_not_believed(const Storage& storage, const FileStatus& found, int descriptor,
                                          const FileStatus& archive, std::string_view noun) {
  if (const auto owner = why_not_believed_owner(storage, found.uid, archive)) {
    return Disbelief{fmt::format("belongs to user {}, who may not write {}{}", found.uid, noun, *owner),
                     true};
  }
  if (has_other_writers(found, descriptor, archive)) {
    return Disbelief{fmt::format(
        "belongs to user {}, and its mode {:04o} or its access control list lets users write it who "
        "may not write {}",
        found.uid, found.mode & 07777U, noun)};
  }
  if (!S_ISDIR(found.mode) && found.links > 1) {
    return Disbelief{
        fmt::format("belongs to user {}, and has {} names: another user may have linked it there", found.uid,
                    found.links)};
  }
  return std::nullopt;
}

bool is_of_writer(const Storage& storage, const FileStatus& found, const FileStatus& archive) {
  return found.links <= 1 && !why_not_believed_owner(storage, found.uid, archive);
}

bool is_of_other_file(Storage& storage, const FileNumbers& told, const std::filesystem::path& path,
                      const FileStatus& file, int descriptor, const FileStatus& archive) {
  // The journals of tests may have no numbers.
  const bool is_real = storage.is_system();
  if (!told.are_of_other_file(file, is_real ? descriptor : -1)) return false;
  if (told.inode != file.identity.inode || told.birth_ns != 0) return true;
  const auto directory = open_directory(storage, path.parent_path(), LastLink::Followed);
  return !directory || why_not_believed(storage, directory->status, directory->fd.get(), archive);
}

std::string settlers_of(const FileStatus& journal) {
  return journal.uid == 0 ? "root" : fmt::format("user {} or root", journal.uid);
}

std::string settling_advice(const FileStatus& journal, std::uint32_t user) {
  // A server of files, a container or a read-only mount can refuse root.
  if (user == 0 && journal.uid == 0) return "run `stfs recover` on a host whose root may write it";
  if (user == 0) {
    return fmt::format("run `stfs recover` as user {}, or on a host whose root may write it", journal.uid);
  }
  if (user == journal.uid) return "allow it with `chmod u+rw`, then run `stfs recover`";
  return fmt::format("run `stfs recover` as {}", settlers_of(journal));
}

std::string disbelief_advice(std::uint32_t owner) {
  return fmt::format(
      "if user {} has a right to write the archive, run `stfs recover` as that user; else delete it", owner);
}

}  // namespace stfs
