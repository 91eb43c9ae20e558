// Names the stores that are not mapped: there an unreadable page raises SIGBUS instead of returning an error,
// and a truncation by another host is noticed late or never.
#pragma once

#include <cstdint>
#include <string_view>

namespace stfs {

/// Returns the name of a store whose files are read and not mapped: a network or cluster file system, or one
/// that a program serves (FUSE). Empty for every other store.
///
/// A stacked file system (overlayfs, eCryptfs) has its own type, and its lower layers can't be queried: it is
/// treated as local. If a lower layer is an unmappable store, the user has to say so (-o io=pread).
/// @param filesystem_type  f_type of statfs(2)
std::string_view unmappable_store(std::uint64_t filesystem_type);

}  // namespace stfs
