// The tensors of a driven file system's archive, as another program finds them.
#pragma once

#include <map>
#include <string>

#include "tests/fs/driven_filesystem.h"
#include "tests/support/catch.h"

namespace stfs::test {

inline std::map<std::string, std::string> stored_tensors(const DrivenFilesystem& mount) {
  const auto archive = Archive::open(mount.path(), Access::ReadOnly).value();
  std::map<std::string, std::string> found;
  for (std::uint32_t at = 0; at < archive->tensors().size(); ++at) {
    const Tensor tensor = archive->tensors()[at];
    std::string bytes(tensor.data.size_bytes, '\0');
    REQUIRE(archive->read_through(std::as_writable_bytes(std::span(bytes)),
                                  archive->version()->file_range(tensor.data).offset));
    found.emplace(tensor.name, bytes);
  }
  return found;
}

}  // namespace stfs::test
