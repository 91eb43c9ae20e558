#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "core/base/mutex.h"
#include "fs/base/log.h"
#include "fs/model/mounted_model.h"

namespace stfs {
namespace {

/// The kernel asks for a new file when its look-up has found no file of that name, so the kernel has checked
/// no permission of a file. After ESTALE the kernel looks the name up again, and checks the permissions of
/// the file that another program has made.
tl::unexpected<Error> exists_already(int flags) {
  const int why = (flags & O_EXCL) != 0 ? EEXIST : ESTALE;
  return fail(ErrorCode::NotFound, why, "was made meanwhile");
}

}  // namespace

Result<CreatedFile> MountedModel::create(Ino parent, std::string_view name, int flags, pid_t opener,
                                         mode_t mode, const Maker& maker) {
  const Node directory = node_of(parent);
  if (!directory.is_directory()) return no_such_inode(parent);
  RETURN_IF_ERROR(check_caller(directory, S_IWOTH));
  const auto find = [&] {
    auto found = lookup(parent, name);
    if (found) views_.forget(InodeSpace::local(found->st_ino), 1);
    return found;
  };
  const auto known = find();
  if (known) return exists_already(flags);
  if (known.error().errno_value != ENOENT) return tl::unexpected(known.error());
  // EEXIST is passed on if the name is taken by an entry that is not shown, because the kernel would not find
  // the name.
  const auto is_there = [&](const Error& why) { return why.errno_value == EEXIST && find(); };
  if (directory.ino == kHiddenIno ||
      (directory.ino == PretrainedDirectory::kDirectory && takes_checkpoint(name)))
    return create_checkpoint(directory.ino, name, flags, opener);
  if (directory.is_of_source()) {
    const auto made = served_files_.create(directory, name, mode, maker);
    if (!made)
      return made.error().errno_value == EEXIST ? exists_already(flags) : tl::unexpected(made.error());
    const Node file = node_of(*made);
    auto shown = status_of(file);
    if (shown) return CreatedFile{*shown, nullptr};
    served_files_.release(file);
    return pass_on(std::move(shown));
  }
  if (transactions_.is_npy_directory(directory.ino))
    return create_staged_npy(directory.ino, name, flags, opener);
  if (transactions_.is_transaction(directory.ino)) return create_staged(directory.ino, name, flags, opener);
  auto made = create_draft(directory, name, flags, opener, mode);
  // Another mount of the model may have made it at this moment.
  return made || !is_there(made.error()) ? std::move(made) : exists_already(flags);
}

Result<OpenFile*> MountedModel::open(Ino ino, int flags, pid_t opener) {
  const Node node = node_of(ino);
  if (!node.exists()) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  if (node.is_directory()) return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
  if (node.is_source_file()) {
    auto opened = served_files_.open(node, flags);
    return opened ? Result<OpenFile*>(nullptr) : pass_on(std::move(opened));
  }
  const int access = flags & O_ACCMODE;
  if (access == O_RDONLY) return nullptr;
  if (Views::is_archive(node.ino)) return open_checkpoint(node, flags, opener);
  if (node.is_view()) return open_npy(node, flags, opener);
  if (node.kind == Node::Kind::StagedNpy) return open_staged_npy(node, flags, opener);
  if (transactions_.is_transaction(node.ino)) return open_staged(node, flags, opener);
  if (const auto draft = drafts_.find(node.ino); draft && node.kind == Node::Kind::Draft) {
    if (draft->is_scratch()) {
      RETURN_IF_ERROR(draft->content->new_tensor()->scratch()->open());
    } else if (draft->content->new_tensor() == nullptr) {
      RETURN_IF_ERROR(check_caller_writes_all());
    }
    return add_open(node.ino, flags, opener, FileKind::New, draft->content);
  }
  if (reader_.is_broken(model().place(node.tensor).shard))
    return fail(ErrorCode::ArchiveChanged, ESTALE, "the archive's header has changed");
  if (options_.is_read_only) return fail(ErrorCode::ReadOnly, EROFS, "mounted read-only");

  const FileKind kind = access == O_WRONLY ? FileKind::Isolated : FileKind::Shared;
  auto content = kind == FileKind::Shared ? shared_content(node) : nullptr;
  if (!content || content->has_failed) {
    auto patch = std::make_unique<TensorPatch>(snapshots_, node.tensor);
    content = std::make_shared<PendingFile>(node.tensor, std::move(patch));
  }
  // Another open may have added a content since the check above: the file may get that one.
  OpenFile* const opened = add_open(node.ino, flags, opener, kind, std::move(content));
  if (opened->kind == FileKind::Shared) may_be_cached_[number_of(node.tensor)] = true;
  return opened;
}

Result<Stale> MountedModel::write(OpenFile& file, std::span<const std::byte> from, std::uint64_t offset,
                                  Caller caller, const std::function<void()>& accept) {
  const std::shared_ptr<PendingFile> kept = file.content;
  PendingFile& content = *kept;
  file.is_untouched = false;
  if (file.kind == FileKind::Shared) may_be_cached_[number_of(content.tensor())] = true;
  if (accept && file.kind == FileKind::Isolated && !file.is_synchronous && !file.appends) {
    if (auto written = write_beside(content, from, offset, caller, accept)) {
      if (!*written) return pass_on(std::move(*written));
      return Stale{};
    }
  }
  const MutexLock lock(content.mutex);
  // The kernel knows one end of file per inode. A truncated, isolated content has another end.
  if (file.appends) offset = content.size_bytes();
  content.note_write(caller);
  RETURN_IF_ERROR(load_base(content, file.ino));
  RETURN_IF_ERROR(stage_write(content, from, offset));
  if (!file.is_synchronous || file.kind != FileKind::Isolated || !content.is_whole()) return Stale{};
  return commit_if_dirty(file);
}

Result<void> MountedModel::write_back(Ino ino, std::span<const std::byte> from, std::uint64_t offset) {
  const Node node = node_of(ino);
  const auto content = node.is_directory() ? nullptr : shared_content(node);
  if (!content) return fail(ErrorCode::InvalidArgument, EIO, "written back without a descriptor");
  may_be_cached_[number_of(content->tensor())] = true;
  const MutexLock lock(content->mutex);
  RETURN_IF_ERROR(load_base(*content, node.ino));
  const std::uint64_t end = content->mapped_bytes();  // the kernel writes back whole pages
  if (offset >= end) return {};
  content->writers.note_unnamed();
  content->was_refused = false;
  return stage_write(*content,
                     from.first(static_cast<std::size_t>(std::min<std::uint64_t>(from.size(), end - offset))),
                     offset);
}

std::optional<Result<void>> MountedModel::write_beside(PendingFile& content, std::span<const std::byte> from,
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
  const MutexLock alone(content.mutex);
  return refuse_write(content, std::move(*content.failure));
}

Result<void> MountedModel::stage_write(PendingFile& content, std::span<const std::byte> from,
                                       std::uint64_t offset) {
  if (content.failure) return tl::unexpected(*content.failure);
  Result<void> staged = content.write(from, offset);
  content.show_size();
  return staged ? staged : refuse_write(content, std::move(staged).error());
}

tl::unexpected<Error> MountedModel::refuse_write(PendingFile& content, Error why) {
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

Result<void> MountedModel::resize(OpenFile& file, std::uint64_t size_bytes, Caller caller) {
  PendingFile& content = *file.content;
  file.is_untouched = false;
  const MutexLock lock(content.mutex);
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

Result<void> MountedModel::check_settable(Ino ino) const {
  if (options_.is_read_only) return fail(ErrorCode::ReadOnly, EROFS, "mounted read-only");
  const Node node = node_of(ino);
  const bool is_written =
      node.kind == Node::Kind::StagedNpy || Views::is_npy(node.ino) || Views::is_archive(node.ino);
  if (!node.is_other_form() || (is_written && options_.allows_edits) || drafts_.find(node.ino)) return {};
  return fail(ErrorCode::ReadOnly, EPERM, "this view is read-only: its times, mode and owner can't be set");
}

Result<void> MountedModel::resize_by_name(Ino ino, std::uint64_t size_bytes, pid_t caller) {
  const Node node = node_of(ino);
  if (!node.exists()) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  if (node.is_directory()) return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
  RETURN_IF_ERROR(check_settable(ino));
  if (node.is_other_form() || node.kind == Node::Kind::Draft) {
    auto file = open_files_.just_opened(node.ino, caller);
    RETURN_IF_ERROR(file);
    if (*file != nullptr) return resize(**file, size_bytes, {});
    const auto draft = drafts_.find(node.ino);
    if (!draft || !draft->is_scratch())
      return fail(ErrorCode::InvalidArgument, EPERM, "open it to change its size");
    const MutexLock lock(draft->content->mutex);
    return draft->content->resize(size_bytes);
  }
  const std::uint64_t due = model().tensor(node.tensor).data.size_bytes;
  if (size_bytes == due) return {};
  if (size_bytes == 0) {
    auto file = open_files_.just_opened(node.ino, caller);
    RETURN_IF_ERROR(file);
    if (*file != nullptr) return resize(**file, 0, {});
  }
  return fail(ErrorCode::WrongSize, size_bytes > due ? EFBIG : EINVAL, "a tensor's size is fixed");
}

}  // namespace stfs
