// The mark of a directory that this project makes beside a model.
//
// A user who may write the model's directory may give any directory such a name, also a private one of the
// mounting user, which the mount would then show to others. The owner of that directory proves nothing. So a
// new directory gets an attribute with its inode number and birth time, its name, and the inode number of the
// directory that holds it: only a user who may write a directory can set the attribute, and on a directory
// that was moved or copied it does not count.
//
// A file system may have no attributes, and a copy of a model has no valid marks. Callers then compare modes.
#pragma once

#include <cstdint>
#include <string>

namespace stfs {

enum class MadeMark : std::uint8_t {
  Valid,
  Missing,      // or that of another directory
  Unsupported,  // by the file system
};

/// Marks a new directory. A failure leaves it without a mark. Call it while nobody else may write it.
/// @param directory  open for reading.
/// @param above      holds it. O_PATH is enough.
void mark_made_directory(int directory, int above, const std::string& name);

MadeMark made_mark_of(int directory, int above, const std::string& name);

}  // namespace stfs
