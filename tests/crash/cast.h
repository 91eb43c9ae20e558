// The users, the permissions of archives, and the hosts of the scenarios with several hosts.
#pragma once

#include "tests/support/disk_model.h"
#include "tests/support/disk_user.h"

namespace stfs::test {

inline const DiskUser kRoot;
inline const DiskUser kAlice{.uid = 1000, .gid = 100, .groups = {200}};
inline const DiskUser kBob{.uid = 1001, .gid = 101, .groups = {200}};
inline const DiskUser kCarol{.uid = 1002, .gid = 102};  // not in the group of Alice and Bob
inline const DiskAccess kHers{.uid = 1000, .gid = 100, .permissions = 0600};
inline const DiskAccess kOfAnotherUser{.uid = 1000, .gid = 200, .permissions = 0660};
inline const DiskAccess kEverybodys{.uid = 1000, .gid = 200, .permissions = 0666};
inline const DiskAccess kReadable{.uid = 1000, .gid = 200, .permissions = 0664};
inline const DiskOptions kGroupDirectory{.directory = {.uid = 1000, .gid = 200, .permissions = 02770}};

/// Without birth times, as cluster file systems and NFSv3.
inline const DiskMount kOneHost{.device = 1, .has_birth_times = false, .boot = {.id = {1}, .host = 1}};
inline const DiskMount kOtherHost{.device = 2, .has_birth_times = false, .boot = {.id = {2}, .host = 2}};
inline const DiskMount kServer{.device = 3, .has_birth_times = true, .boot = {.id = {3}, .host = 3}};

}  // namespace stfs::test
