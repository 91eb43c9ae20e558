// What open(2) with O_CREAT sends.
#pragma once

#include <unistd.h>

#include <string_view>

#include "fs/model/filesystem.h"

namespace stfs::test {

/// The kernel opens what it finds by the name, and asks for a new file only where it finds none.
inline Filesystem::Created opened_or_made(Filesystem& filesystem, Ino parent, std::string_view name,
                                          int flags) {
  const auto known = filesystem.lookup(parent, name);
  if (!known) return filesystem.create(parent, name, flags, ::getpid()).value();
  return {*known, filesystem.open(known->st_ino, flags, ::getpid()).value()};
}

}  // namespace stfs::test
