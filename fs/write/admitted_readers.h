// Admits readers of a pending file while the holder of its lock commits the file.
#pragma once

#include "fs/write/content_lock.h"

namespace stfs {

/// Lets readers in during its lifetime, and makes them leave in the destructor. The caller holds the lock.
class AdmittedReaders {
 public:
  explicit AdmittedReaders(ContentLock& lock) : lock_(lock) { lock_.admit_readers(); }
  ~AdmittedReaders() { lock_.send_readers_out(); }
  AdmittedReaders(const AdmittedReaders&) = delete;
  AdmittedReaders& operator=(const AdmittedReaders&) = delete;

 private:
  ContentLock& lock_;
};

}  // namespace stfs
