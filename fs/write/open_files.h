// The descriptors of one model that may write, and the contents that they share.
#pragma once

#include <sys/types.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>

#include "core/base/mutex.h"
#include "fs/write/open_file.h"

namespace stfs {

/// Any thread may call. A content's mutex is taken before this object's, which is held only for moments.
class OpenFiles {
 public:
  /// Owns the file until remove(). A Shared file gets the content that all Shared files of its inode share.
  /// If they have no content, or a failed one, the file gives them its own content.
  OpenFile* add(std::unique_ptr<OpenFile> file);
  /// Call when the file's last copy is closed. @return true if no other file has its content.
  bool leave(PendingFile& content);
  /// Call after leave().
  void remove(OpenFile* file);

  /// The content that the Shared files of an inode share, or null.
  [[nodiscard]] std::shared_ptr<PendingFile> shared_content(Ino ino) const;
  /// Returns the file that a thread has opened last, if this file is of the inode and untouched; null
  /// otherwise. EBUSY if the opener's pid is hidden and several files match.
  [[nodiscard]] Result<OpenFile*> just_opened(Ino ino, pid_t opener) const;
  /// True if another living process has opened the content for writing and has not closed it.
  [[nodiscard]] bool is_open_elsewhere(const PendingFile& content, pid_t process) const;
  void visit(const std::function<void(OpenFile&)>& visit) const;

  // The times that utimensat(2) has set (PendingFile::mtime):
  /// Sets the time of the content, or of all files of the inode.
  void keep_mtime(PendingFile& content, struct timespec mtime);
  void keep_mtime(Ino ino, struct timespec mtime);
  [[nodiscard]] std::optional<struct timespec> kept_mtime(const PendingFile& content) const;

 private:
  mutable Mutex mutex_;  // shared_count_ may be read without it
  std::unordered_map<OpenFile*, std::unique_ptr<OpenFile>> files_ GUARDED_BY(mutex_);
  std::uint64_t opens_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<Ino, std::shared_ptr<PendingFile>> shared_ GUARDED_BY(mutex_);
  std::atomic<std::size_t> shared_count_ = 0;  // the size of shared_; every read checks it first
};

}  // namespace stfs
