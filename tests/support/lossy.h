// What a test can do to the stand-in for a file, apart from the calls of the seam.
#pragma once

namespace stfs::test {

/// Found by dynamic_cast from File, so that faults can be put in front of a real disk too.
class LossyFile {
 public:
  virtual ~LossyFile() = default;
  /// What a sync does to the cache when the disk fails: clean, and wrong (disk_image.h).
  virtual void fail_sync() = 0;
};

}  // namespace stfs::test
