// The mark of a directory that this project makes beside a model.
//
// A user who may write the model's directory may give such a name to any directory, for example to a private
// one of the mounting user. The mount would then show it to others. The owner of that directory proves
// nothing. The proof is an attribute of a new directory with its inode number and birth time, its name, and
// the inode number of its parent. Only a user who may write a directory can set the attribute. On a directory
// that was moved or copied the attribute is not valid.
//
// A file system may have no attributes, and a copy of a model has no valid marks. Callers then compare modes.
#pragma once

#include <cstdint>
#include <string>

namespace stfs {

enum class MadeMark : std::uint8_t {
  Valid,
  Missing,      // or another directory's mark
  Unsupported,  // the file system has no attributes
};

/// Marks a new directory. A failure leaves it without a mark. Call it while no other user may write it.
/// @param directory  open for reading.
/// @param above  its parent. O_PATH is enough.
void mark_made_directory(int directory, int above, const std::string& name);

MadeMark made_mark_of(int directory, int above, const std::string& name);

}  // namespace stfs
