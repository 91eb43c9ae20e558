// Which stores are no good to map: there a page that can't be had is a SIGBUS instead of an error, and what
// another host cuts off is noticed late or never.
#pragma once

#include <cstdint>
#include <string_view>

namespace stfs {

/// The name of a store whose files are to be read and not mapped: a network or cluster file system, or one
/// that a program serves (FUSE). Empty of every other.
///
/// A file system over others (overlayfs, eCryptfs) has a type of its own, and nobody can ask what lies below:
/// it is taken for local. Where it lies over such a store, the user has to say so (-o io=pread).
/// @param filesystem_type  f_type of statfs(2)
std::string_view unmappable_store(std::uint64_t filesystem_type);

}  // namespace stfs
