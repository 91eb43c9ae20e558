#include "core/storage/permissions.h"

#include <endian.h>
#include <fmt/format.h>
#include <linux/posix_acl_xattr.h>
#include <sys/xattr.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <functional>
#include <span>

#include "core/storage/group_members.h"
#include "core/storage/mount_record.h"

namespace stfs {
namespace {

// Copied from linux/posix_acl.h, which programs can't include.
constexpr unsigned kGroupObject = 0x04;
constexpr unsigned kUser = 0x02;
constexpr unsigned kGroup = 0x08;
constexpr unsigned kMask = 0x10;
constexpr const char* kAccessList = "system.posix_acl_access";
constexpr mode_t kBits = 07;
constexpr mode_t kNineBits = 0777;
constexpr unsigned kGroupShift = 3;
constexpr unsigned kOwnerShift = 6;

struct Entry {
  unsigned tag = 0;
  mode_t bits = 0;
};

Entry entry_at(std::span<const char> list, std::size_t at) {
  posix_acl_xattr_entry entry{};
  std::memcpy(&entry, list.data() + at, sizeof entry);
  return {le16toh(entry.e_tag), le16toh(entry.e_perm) & kBits};
}

/// Returns the mode without the rights that an entry of the list denies.
mode_t within(std::span<const char> list, mode_t mode) {
  mode_t mask = kBits;
  mode_t group = kBits;
  mode_t named = kBits;
  for (std::size_t at = sizeof(posix_acl_xattr_header); at + sizeof(posix_acl_xattr_entry) <= list.size();
       at += sizeof(posix_acl_xattr_entry)) {
    const Entry entry = entry_at(list, at);
    if (entry.tag == kMask) mask = entry.bits;
    if (entry.tag == kGroupObject) group = entry.bits;
    if (entry.tag == kUser || entry.tag == kGroup) named &= entry.bits;
  }
  named &= mask;
  return (mode & kBits << kOwnerShift) | (group & mask & named) << kGroupShift | (mode & kBits & named);
}

ssize_t read_list(int descriptor, char* list, std::size_t size_bytes) {
  const ssize_t read = ::fgetxattr(descriptor, kAccessList, list, size_bytes);
  if (read >= 0 || errno != EBADF) return read;
  // Linux reads attributes of a descriptor with O_PATH only by this path. It leads to the open file.
  return ::getxattr(fmt::format("/proc/self/fd/{}", descriptor).c_str(), kAccessList, list, size_bytes);
}

/// Without a list the group's bits are complete. With a list they are its mask.
mode_t within_list(mode_t mode, int descriptor) {
  std::array<char, 8192> list;  // filled by the call
  const ssize_t size = read_list(descriptor, list.data(), list.size());
  if (size >= 0) return within(std::span(list).first(static_cast<std::size_t>(size)), mode);
  // A list longer than the buffer: allow only the owner.
  return errno == ERANGE ? mode & kBits << kOwnerShift : mode;
}

/// In a user namespace, one number means all users outside of it, and a user inside may have the same number.
/// The same holds for groups.
void restrict_to_known(Permissions& found) {
  const mode_t of_others = found.mode & kBits;
  if (!is_same_user(found.uid, found.uid)) found.mode &= ~(kBits << kOwnerShift) | of_others << kOwnerShift;
  if (!is_known_group(found.gid)) found.mode &= ~(kBits << kGroupShift) | of_others << kGroupShift;
}

template <class Combine>
Permissions combined(const Permissions& one, const Permissions& other, const Combine& combine) {
  const auto part = [](const Permissions& of, unsigned shift) { return of.mode >> shift & kBits; };
  const mode_t its_owner = part(other, kOwnerShift);
  const mode_t its_group = part(other, kGroupShift);
  const mode_t its_others = part(other, 0);
  const mode_t of_no_owner = combine(its_group, its_others);
  const bool same_owner = is_same_user(one.uid, other.uid);
  // A user who does not own one file may own the other. The same holds for the group.
  const mode_t for_owner = same_owner ? its_owner : of_no_owner;
  const auto for_class = [&](mode_t bits) {
    const mode_t of_class = one.gid == other.gid ? bits : of_no_owner;
    return same_owner ? of_class : combine(of_class, its_owner);
  };
  Permissions both = one;
  both.mode = combine(part(one, kOwnerShift), for_owner) << kOwnerShift |
              combine(part(one, kGroupShift), for_class(its_group)) << kGroupShift |
              combine(part(one, 0), for_class(its_others));
  return both;
}

}  // namespace

Result<Permissions> permissions_of(const File& file) {
  const auto status = file.status();
  RETURN_IF_ERROR(status);
  Permissions found{.mode = status->mode & kNineBits, .uid = status->uid, .gid = status->gid};
  if (file.descriptor() < 0) return found;  // a file of a test's model
  found.mode = within_list(found.mode, file.descriptor());
  restrict_to_known(found);
  return found;
}

Permissions permissions_of(const struct stat& status, int descriptor) {
  Permissions found{.mode = status.st_mode & kNineBits, .uid = status.st_uid, .gid = status.st_gid};
  found.mode = within_list(found.mode, descriptor);
  restrict_to_known(found);
  return found;
}

Result<FileStatus> strict_status_of(const File& file) {
  const auto status = file.status();
  return status ? strict_status_of(*status, file.descriptor()) : status;
}

FileStatus strict_status_of(FileStatus status, int descriptor) {
  if (descriptor < 0) return status;
  constexpr uid_t kNobody = static_cast<uid_t>(-1);  // no process has this user
  status.uid = owner_of(descriptor, status.uid).value_or(kNobody);
  status.mode = (status.mode & ~kNineBits) | within_list(status.mode & kNineBits, descriptor);
  return status;
}

bool has_access_list(int descriptor) {
  return descriptor >= 0 && read_list(descriptor, nullptr, 0) > 0;
}

void drop_access_list(int descriptor) {
  if (descriptor >= 0) static_cast<void>(::fremovexattr(descriptor, kAccessList));
}

mode_t NewFileMode::in_group(gid_t gid) const {
  if (!group || *group == gid) return mode;
  const mode_t of_all = mode & mode >> kGroupShift & kBits;
  return (mode & kBits << kOwnerShift) | of_all << kGroupShift | of_all;
}

NewFileMode strictest(const NewFileMode& one, const NewFileMode& other) {
  std::optional<uid_t> owner = one.owner ? one.owner : other.owner;
  if (one.owner && other.owner && !is_same_user(*one.owner, *other.owner)) owner = NewFileMode::kNoUser;
  if (!one.group) return {one.mode & other.mode, other.group, owner};
  return {one.mode & (other.group ? other.in_group(*one.group) : other.mode), one.group, owner};
}

NewFileMode mode_of_copy(const File& file) {
  constexpr mode_t kReadAndWrite = 0666;
  constexpr mode_t kOwnersReadAndWrite = 0600;
  const auto status = strict_status_of(file);
  if (!status) return {.mode = kOwnersReadAndWrite, .owner = NewFileMode::kNoUser};
  return {.mode = (status->mode & kReadAndWrite) | kOwnersReadAndWrite,
          .group = status->gid,
          .owner = status->uid};
}

Permissions strictest(const Permissions& one, const Permissions& other) {
  return combined(one, other, std::bit_and<mode_t>());
}

Permissions loosest(const Permissions& one, const Permissions& other) {
  return combined(one, other, std::bit_or<mode_t>());
}

}  // namespace stfs
