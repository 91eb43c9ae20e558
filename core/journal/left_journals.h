// Removes the files that dead processes have left beside archives that are not opened by that name again.
//
// All hidden files that we make beside an archive NAME have names that begin with ".NAME.stj.ID". None stays
// after its use:
//
//   the file            is made by            goes                                        after a death, goes
//   with
//   a journal           a commit              when the commit is applied                  recover()
//   .group              a commit of shards    after the last of its journals              recover()
//   .standing           the mount's small     with the mount, and when the archive is     recover()
//                       commits               replaced, renamed or deleted in the mount
//   .staged             any of them, without  when it gets its name                       recover()
//                       unnamed files; a replace-
//                       ment of the archive
//   .index              the replacement of    when it takes the index's name              the recovery of its
//                       an index                                                          journal
//
// recover() finds them by the archive's name. An archive that was renamed or deleted, and a shard that the
// index does not name any more, are not opened again by that name: their files go with the next opening for
// writing of any model in the directory.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "core/storage/file.h"

namespace stfs {

/// Removes journals of archives that do not exist, if they promise nothing and their owners are dead. A
/// journal that holds a commit stays: the archive may get its name back. All files stay if the file system
/// has no locks. A failure leaves the file where it is, and harms nothing.
/// @param opened  file names of the directory's archives that the caller has recovered.
/// @param recovers_others  also calls recover() for the other archives of the directory that have journals: a
///                         former shard of the caller's model may be among them.
void remove_left_journals(Storage& storage, const std::filesystem::path& directory,
                          const std::set<std::string>& opened, bool recovers_others);

}  // namespace stfs
