// What a test can do to the stand-ins for a disk, apart from the calls of the seam. Found by dynamic_cast from File
// and Storage, so that faults can be put in front of a real disk too.
#pragma once

#include <filesystem>

namespace stfs::test {

class LossyFile {
 public:
  virtual ~LossyFile() = default;
  /// What a sync does to the cache when the disk fails: clean, and wrong (disk_image.h).
  virtual void fail_sync() = 0;
};

class LossyStorage {
 public:
  virtual ~LossyStorage() = default;
  virtual void fail_sync_directory(const std::filesystem::path& directory) = 0;
};

}  // namespace stfs::test
