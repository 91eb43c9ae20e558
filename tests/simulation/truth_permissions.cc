// The rights in a mount that other users may enter: the archive's mode and owner decide. Only its maker may
// use a transaction.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "tests/simulation/truth.h"

namespace stfs::test {
namespace {

/// In a directory with the sticky bit, only the owner of an entry or of the directory may move the entry.
bool may_move(const Program& program, std::uint32_t owner, const DiskAccess& directory) {
  return program.uid == 0 || program.uid == owner || program.uid == directory.uid;
}

}  // namespace

template <class DueOf>
Truth::Dues Truth::all_dues(const Program& program, const DueOf& due_of) const {
  const DiskUser user{.uid = program.uid, .gid = program.uid};
  Dues dues;
  for (const DiskAccess& access : accesses_) {
    // A user who may read the archive may enter the mount.
    dues.insert(permits(access, user, kMayRead) ? due_of(user, access) : EACCES);
  }
  return dues;
}

Truth::Dues Truth::dues(const Program& program, const Target& target, std::uint32_t wanted) const {
  const bool is_stranger =
      !target.transaction.empty() && program.uid != 0 && program.uid != makers_.at(target.transaction);
  return all_dues(program, [&](const DiskUser& user, const DiskAccess& access) {
    return !is_stranger && permits(access, user, wanted) ? 0 : EACCES;
  });
}

Truth::Dues Truth::dues_of_view(const Program& program, std::uint32_t wanted) const {
  return all_dues(program, [&](const DiskUser& user, const DiskAccess& access) {
    return permits(access, user, wanted) ? 0 : EACCES;
  });
}

Truth::Dues Truth::dues_of_begin(const Program& program, const std::string& transaction) const {
  return all_dues(program, [&](const DiskUser& user, const DiskAccess& access) {
    if (has_transaction(transaction)) return EEXIST;
    return permits(access, user, kMayWrite) ? 0 : EACCES;
  });
}

Truth::Dues Truth::dues_of_commit(const Program& program, const std::string& transaction) const {
  const std::uint32_t maker = makers_.at(transaction);
  const auto earlier = committed_.find(transaction);
  return all_dues(program, [&](const DiskUser& user, const DiskAccess& access) {
    if (!permits(access, user, kMayWrite)) return EACCES;
    if (!may_move(program, maker, access)) return EPERM;
    if (earlier != committed_.end() && !may_move(program, earlier->second, access)) return EPERM;
    return program.uid == 0 || program.uid == maker ? 0 : EACCES;
  });
}

Truth::Dues Truth::dues_of_entering(const Program& program, const std::string& transaction) const {
  const bool is_its = program.uid == 0 || program.uid == makers_.at(transaction);
  return all_dues(program, [&](const DiskUser&, const DiskAccess&) { return is_its ? 0 : EACCES; });
}

Truth::Dues Truth::dues_of_removal(const Program& program, const std::string& transaction) const {
  return all_dues(program, [&](const DiskUser& user, const DiskAccess& access) {
    if (!permits(access, user, kMayWrite)) return EACCES;
    if (!may_move(program, makers_.at(transaction), access)) return EPERM;
    return is_empty(transaction) ? 0 : ENOTEMPTY;
  });
}

void Truth::check_access(const fuse_attr& shown, std::uint32_t of_mode, const std::string& path) {
  const bool is_so = std::ranges::any_of(accesses_, [&](const DiskAccess& access) {
    return (shown.mode & 07777U) == (access.permissions & of_mode) && shown.uid == access.uid &&
           shown.gid == access.gid;
  });
  expect(is_so, fmt::format("{} has mode {:o} and is of user {} and group {}; "
                            "the archive has {:o}, {} and {}",
                            path, shown.mode, shown.uid, shown.gid, access().permissions, access().uid,
                            access().gid));
}

}  // namespace stfs::test
