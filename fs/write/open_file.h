// The open descriptors of files, and their kinds.
//
//   Reader    O_RDONLY             A descriptor without state; its reads come from the archive.
//   Isolated  O_WRONLY             A descriptor with its own PendingFile. It bypasses the page cache, so no
//                                  other process sees the bytes before the commit.
//   Shared    O_RDWR               All O_RDWR descriptors of the tensor share one PendingFile, because they
//                                  share the kernel's page cache with each other and with the readers of the
//                                  tensor.
//   New       a file that is no tensor yet   All descriptors share one PendingFile.
//   Grouped   in a transaction's   All descriptors of this file share one PendingFile. Only the commit of the
//             directory            transaction commits it.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "fs/base/user_counts.h"
#include "fs/tree/inode_table.h"
#include "fs/write/pending_file.h"

namespace stfs {

enum class FileKind : std::uint8_t { Reader, Isolated, Shared, Grouped, New };

struct OpenFile {
  Ino ino = 0;
  FileKind kind = FileKind::Reader;
  bool appends = false;                  // O_APPEND
  bool is_synchronous = false;           // O_SYNC or O_DSYNC
  std::shared_ptr<PendingFile> content;  // null for a Reader

  const uid_t user = requesting_user();  // the user who opened the file
  // For open(2) with O_TRUNC the kernel sends the truncation as a separate request that names no descriptor.
  // The request is for the newest untouched descriptor that the same thread has opened.
  pid_t opener = 0;  // the thread; 0 if it is in another pid namespace
  pid_t opener_process = 0;
  std::uint64_t opened_at = 0;  // the number of this open, counted from the first open of the mount
  std::atomic<bool> is_untouched = true;
  bool opener_has_closed = false;                // guarded by the content's mutex
  std::atomic<bool> opener_has_flushed = false;  // the opener has closed at least one copy
};

/// True if writes through this descriptor go through the inode's page cache, where all descriptors of the
/// file see them.
inline bool is_in_page_cache(const OpenFile& file) {
  return file.kind == FileKind::Shared || file.kind == FileKind::Grouped;
}

}  // namespace stfs
