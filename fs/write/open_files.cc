#include "fs/write/open_files.h"

#include <algorithm>
#include <utility>

#include "core/base/mutex.h"
#include "fs/base/process.h"

namespace stfs {

OpenFile* OpenFiles::add(std::unique_ptr<OpenFile> file) {
  const MutexLock lock(mutex_);
  if (file->kind == FileKind::Shared) {
    // A failed content stays with its own descriptors, which must get its error, until they are closed.
    std::shared_ptr<PendingFile>& shared = shared_[file->ino];
    if (!shared) ++shared_count_;
    if (!shared || shared->has_failed) shared = file->content;
    file->content = shared;
  }
  ++file->content->descriptors;
  file->opened_at = ++opens_;
  OpenFile* const opened = file.get();
  files_.emplace(opened, std::move(file));
  return opened;
}

bool OpenFiles::leave(PendingFile& content) {
  const MutexLock lock(mutex_);
  return --content.descriptors == 0;
}

void OpenFiles::remove(OpenFile* file) {
  const MutexLock lock(mutex_);
  const auto shared = shared_.find(file->ino);
  if (shared != shared_.end() && shared->second == file->content && file->content->descriptors == 0) {
    shared_.erase(shared);
    --shared_count_;
  }
  files_.erase(file);
}

std::shared_ptr<PendingFile> OpenFiles::shared_content(Ino ino) const {
  if (shared_count_.load(std::memory_order_acquire) == 0) return nullptr;
  const MutexLock lock(mutex_);
  const auto found = shared_.find(ino);
  return found == shared_.end() ? nullptr : found->second;
}

Result<OpenFile*> OpenFiles::just_opened(Ino ino, pid_t opener) const {
  const MutexLock lock(mutex_);
  OpenFile* newest = nullptr;
  for (const auto& [file, owned] : files_) {
    if (file->opener != opener) continue;
    if (opener == 0 && (file->ino != ino || !file->is_untouched)) continue;
    // Threads of other pid namespaces look alike. If several match, refuse: the truncation could hit another
    // process's descriptor.
    if (newest != nullptr && opener == 0)
      return fail(ErrorCode::InvalidArgument, EBUSY, "several programs have opened it");
    if (newest == nullptr || file->opened_at > newest->opened_at) newest = file;
  }
  // The kernel sends an O_TRUNC's request directly after its open, so no other open of this thread is between
  // them.
  return newest != nullptr && newest->ino == ino && newest->is_untouched ? newest : nullptr;
}

bool OpenFiles::is_open_elsewhere(const PendingFile& content, pid_t process) const {
  const MutexLock lock(mutex_);
  return std::ranges::any_of(files_, [&](const auto& open) {
    const OpenFile& file = *open.first;
    return file.content.get() == &content && file.opener_process != process && !file.opener_has_closed &&
           is_alive(file.opener_process);
  });
}

void OpenFiles::visit(const std::function<void(OpenFile&)>& visit) const {
  const MutexLock lock(mutex_);
  for (const auto& [key, file] : files_) visit(*file);
}

void OpenFiles::keep_mtime(PendingFile& content, struct timespec mtime) {
  const MutexLock lock(mutex_);
  content.mtime = mtime;
  content.keeps_mtime = true;
}

void OpenFiles::keep_mtime(Ino ino, struct timespec mtime) {
  const MutexLock lock(mutex_);
  for (const auto& [file, owned] : files_) {
    if (file->ino != ino) continue;
    file->content->mtime = mtime;
    file->content->keeps_mtime = true;
  }
}

std::optional<struct timespec> OpenFiles::kept_mtime(const PendingFile& content) const {
  const MutexLock lock(mutex_);
  return content.keeps_mtime ? std::optional(content.mtime) : std::nullopt;
}

}  // namespace stfs
