// A fault that tests inject into a simulated file, apart from the calls of File.
#pragma once

namespace stfs::test {

/// Found by dynamic_cast from File, so that the same faults work in front of a real disk.
class LossyFile {
 public:
  virtual ~LossyFile() = default;
  /// Fails a sync: the cache becomes clean, although the disk lacks its bytes (disk_image.h).
  virtual void fail_sync() = 0;
};

}  // namespace stfs::test
