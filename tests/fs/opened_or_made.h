// Sends the requests that the kernel sends for open(2) with O_CREAT.
#pragma once

#include <unistd.h>

#include <string_view>

#include "fs/model/mounted_model.h"

namespace stfs::test {

/// The kernel opens a file that it finds by the name, and asks for a new file only if it finds none.
inline CreatedFile opened_or_made(MountedModel& filesystem, Ino parent, std::string_view name, int flags) {
  const auto known = filesystem.lookup(parent, name);
  if (!known) return filesystem.create(parent, name, flags, ::getpid()).value();
  return {*known, filesystem.open(known->st_ino, flags, ::getpid()).value()};
}

}  // namespace stfs::test
