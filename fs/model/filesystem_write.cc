// Implements opens for writing, writes and resizes (filesystem.h). Bytes that come through a descriptor are
// staged.
#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "fs/base/log.h"
#include "fs/base/process.h"
#include "fs/model/filesystem.h"

namespace stfs {

Result<OpenFile*> Filesystem::open(Ino ino, int flags, pid_t opener) {
  const Node node = resolve(ino);
  if (!node.exists()) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  if (node.is_directory()) return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
  if (node.is_link()) return fail(ErrorCode::InvalidArgument, ELOOP, "is a symbolic link");
  const int access = flags & O_ACCMODE;
  if (access == O_RDONLY) return nullptr;
  if (Views::is_archive(node.ino)) return open_archive_view(node, flags, opener);
  if (node.is_view()) return open_npy(node, flags, opener);
  if (node.kind == Node::Kind::StagedNpy) return open_staged_npy(node, flags, opener);
  if (transactions_.is_transaction(node.ino)) return open_staged(node, flags, opener);
  if (const auto draft = drafts_.find(node.ino); draft && node.kind == Node::Kind::Draft)
    return add_open(node.ino, flags, opener, FileKind::New, draft->content);
  if (reader_.is_broken(model_->place(node.tensor).shard))
    return fail(ErrorCode::ArchiveChanged, ESTALE, "the archive's header has changed");
  if (options_.is_read_only) return fail(ErrorCode::ReadOnly, EROFS, "mounted read-only");

  auto file = std::make_unique<OpenFile>();
  file->ino = node.ino;
  file->opener = opener;
  file->opener_process = process_of(opener);
  file->kind = access == O_WRONLY ? FileKind::Isolated : FileKind::Shared;
  file->appends = (flags & O_APPEND) != 0;
  file->is_synchronous = (flags & O_DSYNC) != 0;  // O_SYNC contains it
  if (file->kind == FileKind::Shared) {
    file->content = shared_content(node);
    if (file->content && file->content->has_failed) file->content = nullptr;
  }
  if (!file->content) file->content = std::make_shared<PendingContent>(model_, node.tensor);
  // Another open may have added a content since the check above: the file may get that one.
  OpenFile* const opened = open_files_.add(std::move(file));
  if (opened->kind == FileKind::Shared) may_be_cached_[number_of(node.tensor)] = true;
  return opened;
}

std::shared_ptr<PendingContent> Filesystem::shared_content(const Node& node) const {
  if (transactions_.is_transaction(node.ino)) return transactions_.content(node.ino);
  if (auto draft = drafts_.find(node.ino)) return draft->content;
  return open_files_.shared_content(node.ino);
}

Result<Stale> Filesystem::write(OpenFile& file, std::span<const std::byte> from, std::uint64_t offset,
                                Caller caller, const std::function<void()>& accept) {
  const std::shared_ptr<PendingContent> kept = file.content;
  PendingContent& content = *kept;
  file.is_untouched = false;
  if (file.kind == FileKind::Shared) may_be_cached_[number_of(content.tensor())] = true;
  if (accept && file.kind == FileKind::Isolated && !file.is_synchronous && !file.appends) {
    if (auto written = write_beside(content, from, offset, caller, accept)) {
      if (!*written) return pass_on(std::move(*written));
      return Stale{};
    }
  }
  const std::scoped_lock lock(content.mutex);
  // The kernel knows one end of file per inode. A truncated, isolated content has an end of its own.
  if (file.appends) offset = content.size_bytes();
  content.note_write(caller);
  if (auto loaded = load_base(content, file.ino); !loaded) return pass_on(std::move(loaded));
  if (auto staged = stage(content, from, offset); !staged) return pass_on(std::move(staged));
  if (!file.is_synchronous || file.kind != FileKind::Isolated || !content.is_whole()) return Stale{};
  return commit_if_dirty(file);
}

Result<void> Filesystem::write_back(Ino ino, std::span<const std::byte> from, std::uint64_t offset) {
  const Node node = resolve(ino);
  const auto content = node.is_directory() ? nullptr : shared_content(node);
  if (!content) return fail(ErrorCode::InvalidArgument, EIO, "written back without a descriptor");
  may_be_cached_[number_of(content->tensor())] = true;
  const std::scoped_lock lock(content->mutex);
  if (auto loaded = load_base(*content, node.ino); !loaded) return loaded;
  // The kernel writes back whole pages. Bytes behind the tensor's end are not part of it.
  // A new tensor gets the size that its file has.
  const std::uint64_t end =
      content->made() ? content->size_bytes() : model_->file_range(content->tensor()).size_bytes;
  if (offset >= end) return {};
  content->writers.note_unnamed();
  content->was_refused = false;
  return stage(*content,
               from.first(static_cast<std::size_t>(std::min<std::uint64_t>(from.size(), end - offset))),
               offset);
}

std::optional<Result<void>> Filesystem::write_beside(PendingContent& content, std::span<const std::byte> from,
                                                     std::uint64_t offset, Caller caller,
                                                     const std::function<void()>& accept) {
  const auto range = ByteRange::checked(offset, from.size());
  if (!range) return std::nullopt;
  content.mutex.lock_beside(*range);
  std::unique_lock lock(content.mutex, std::adopt_lock);
  Staging* const stage = content.failure ? nullptr : content.staged();
  if (stage == nullptr || !stage->takes_halves(*range)) return std::nullopt;
  auto done = guard_memory([&]() -> Result<void> {
    content.note_write(caller);
    return {};
  });
  if (done) {
    accept();
    done = stage->note(from, offset);
  }
  if (done) {
    lock.release()->step_aside(*range);
    done = stage->put(from, offset);
    content.mutex.rejoin(*range);
    lock = std::unique_lock(content.mutex, std::adopt_lock);
  }
  if (done) return done;
  // The failure ends the stage, but only when no other write uses it any more.
  content.note_failure(std::move(done).error());
  lock.unlock();
  const std::scoped_lock alone(content.mutex);
  return refuse(content, std::move(*content.failure));
}

Result<void> Filesystem::stage(PendingContent& content, std::span<const std::byte> from,
                               std::uint64_t offset) {
  if (content.failure) return tl::unexpected(*content.failure);
  Result<void> staged = content.write(from, offset);
  content.show_size();
  return staged ? staged : refuse(content, std::move(staged).error());
}

tl::unexpected<Error> Filesystem::refuse(PendingContent& content, Error why) {
  // After a refused write a program may still close as if nothing were missing. The bytes that came before
  // must not be committed as the whole content, so the content fails. The failure is noted before the reply:
  // the writer may already have got a reply of success.
  const int errno_value = why.errno_value;
  if (why.code == ErrorCode::WrongSize) why.errno_value = EINVAL;
  content.fail(std::move(why));
  why = *content.failure;
  why.errno_value = errno_value;
  log::warning("{}: write refused: {}", label_of(content), why.message);
  return tl::unexpected(std::move(why));
}

Result<void> Filesystem::resize(OpenFile& file, std::uint64_t size_bytes, Caller caller) {
  PendingContent& content = *file.content;
  file.is_untouched = false;
  const std::scoped_lock lock(content.mutex);
  // In a transaction a file may be rewritten after a refusal. All other files need a new open.
  if (file.kind == FileKind::Grouped && size_bytes == 0) content.retry();
  if (content.failure) return tl::unexpected(*content.failure);
  // The truncation of an open has no named caller: an open is not a write.
  if (caller.is_named()) content.note_write(caller);
  Result<void> resized = content.resize(size_bytes);
  content.show_size();
  if (!resized) {
    Error why = resized.error();
    if (why.code == ErrorCode::WrongSize) why.errno_value = EINVAL;
    content.fail(std::move(why));
  }
  return resized;
}

Result<void> Filesystem::check_settable(Ino ino) const {
  if (options_.is_read_only) return fail(ErrorCode::ReadOnly, EROFS, "mounted read-only");
  const Node node = resolve(ino);
  if (node.is_other_form() && !drafts_.find(node.ino))
    return fail(ErrorCode::ReadOnly, EPERM, "views are read-only");
  return {};
}

Result<void> Filesystem::resize_by_name(Ino ino, std::uint64_t size_bytes, pid_t caller) {
  const Node node = resolve(ino);
  if (!node.exists()) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  if (node.is_directory()) return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
  if (auto settable = check_settable(ino); !settable) return settable;
  if (node.is_other_form() || node.kind == Node::Kind::Draft) {
    auto file = open_files_.just_opened(node.ino, caller);
    if (!file) return pass_on(std::move(file));
    if (*file == nullptr) return fail(ErrorCode::InvalidArgument, EPERM, "open it to change its size");
    return resize(**file, size_bytes, {});
  }
  const std::uint64_t due = model_->tensor(node.tensor).data.size_bytes;
  if (size_bytes == due) return {};
  if (size_bytes == 0) {
    auto file = open_files_.just_opened(node.ino, caller);
    if (!file) return pass_on(std::move(file));
    if (*file != nullptr) return resize(**file, 0, {});
  }
  return fail(ErrorCode::WrongSize, size_bytes > due ? EFBIG : EINVAL, "a tensor's size is fixed");
}

}  // namespace stfs
