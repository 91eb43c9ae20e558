// Implements requests that make, open and write files (filesystem.h). Bytes that come through a descriptor
// are staged.
#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "core/base/mutex.h"
#include "fs/base/log.h"
#include "fs/model/filesystem.h"

namespace stfs {
namespace {

/// The kernel asks for a new file when it has found none of that name, and has checked no right to a file.
/// With ESTALE it looks the name up again, and then checks the rights to the file that somebody else has
/// made.
tl::unexpected<Error> exists_already(int flags) {
  const int why = (flags & O_EXCL) != 0 ? EEXIST : ESTALE;
  return fail(ErrorCode::NotFound, why, "was made meanwhile");
}

}  // namespace

Result<Filesystem::Created> Filesystem::create(Ino parent, std::string_view name, int flags, pid_t opener,
                                               mode_t mode, const Maker& maker) {
  const Node directory = parts_.resolve(parent);
  if (!directory.is_directory()) return no_such_inode(parent);
  const auto find = [&] {
    auto found = lookup(parent, name);
    if (found) parts_.views.forget(InodeSpace::local(found->st_ino), 1);
    return found;
  };
  const auto known = find();
  if (known) return exists_already(flags);
  if (known.error().errno_value != ENOENT) return tl::unexpected(known.error());
  // Not where the name is taken by what is not shown: the kernel would look in vain.
  const auto is_there = [&](const Error& why) { return why.errno_value == EEXIST && find(); };
  if (directory.ino == kHiddenIno ||
      (directory.ino == PretrainedDirectory::kDirectory && CheckpointFiles::takes(name)))
    return checkpoints_.create(directory.ino, name, flags, opener);
  if (directory.is_of_source()) {
    const auto made = pretrained_.create(directory, name, mode, maker);
    if (!made)
      return made.error().errno_value == EEXIST ? exists_already(flags) : tl::unexpected(made.error());
    const Node file = parts_.resolve(*made);
    auto shown = stats_.of(file);
    if (shown) return Created{*shown, nullptr};
    pretrained_.release(file);
    return pass_on(std::move(shown));
  }
  if (parts_.transactions.is_npy_directory(directory.ino))
    return staged_.create_npy(directory.ino, name, flags, opener);
  if (parts_.transactions.is_transaction(directory.ino))
    return staged_.create(directory.ino, name, flags, opener);
  auto made = drafts_.create(directory, name, flags, opener, mode);
  // Another mount of the model may have made it at this moment.
  return made || !is_there(made.error()) ? std::move(made) : exists_already(flags);
}

Result<OpenFile*> Filesystem::open(Ino ino, int flags, pid_t opener) {
  const Node node = parts_.resolve(ino);
  if (!node.exists()) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  if (node.is_directory()) return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
  if (node.is_source_file()) {
    auto opened = pretrained_.open(node, flags);
    return opened ? Result<OpenFile*>(nullptr) : pass_on(std::move(opened));
  }
  const int access = flags & O_ACCMODE;
  if (access == O_RDONLY) return nullptr;
  if (Views::is_archive(node.ino)) return checkpoints_.open(node, flags, opener);
  if (node.is_view()) return drafts_.open_npy(node, flags, opener);
  if (node.kind == Node::Kind::StagedNpy) return staged_.open_npy(node, flags, opener);
  if (parts_.transactions.is_transaction(node.ino)) return staged_.open(node, flags, opener);
  if (const auto draft = parts_.drafts.find(node.ino); draft && node.kind == Node::Kind::Draft) {
    if (is_scratch(*draft)) {
      if (auto opened = draft->content->made()->tensor()->scratch()->open(); !opened)
        return pass_on(std::move(opened));
    }
    return parts_.add_open(node.ino, flags, opener, FileKind::New, draft->content);
  }
  if (parts_.reader.is_broken(parts_.model->place(node.tensor).shard))
    return fail(ErrorCode::ArchiveChanged, ESTALE, "the archive's header has changed");
  if (parts_.options.is_read_only) return fail(ErrorCode::ReadOnly, EROFS, "mounted read-only");

  const FileKind kind = access == O_WRONLY ? FileKind::Isolated : FileKind::Shared;
  auto content = kind == FileKind::Shared ? parts_.shared_content(node) : nullptr;
  if (!content || content->has_failed) content = std::make_shared<PendingContent>(parts_.model, node.tensor);
  // Another open may have added a content since the check above: the file may get that one.
  OpenFile* const opened = parts_.add_open(node.ino, flags, opener, kind, std::move(content));
  if (opened->kind == FileKind::Shared) parts_.may_be_cached[number_of(node.tensor)] = true;
  return opened;
}

Result<Stale> Filesystem::write(OpenFile& file, std::span<const std::byte> from, std::uint64_t offset,
                                Caller caller, const std::function<void()>& accept) {
  const std::shared_ptr<PendingContent> kept = file.content;
  PendingContent& content = *kept;
  file.is_untouched = false;
  if (file.kind == FileKind::Shared) parts_.may_be_cached[number_of(content.tensor())] = true;
  if (accept && file.kind == FileKind::Isolated && !file.is_synchronous && !file.appends) {
    if (auto written = write_beside(content, from, offset, caller, accept)) {
      if (!*written) return pass_on(std::move(*written));
      return Stale{};
    }
  }
  const MutexLock lock(content.mutex);
  // The kernel knows one end of file per inode. A truncated, isolated content has an end of its own.
  if (file.appends) offset = content.size_bytes();
  content.note_write(caller);
  if (auto loaded = drafts_.load_base(content, file.ino); !loaded) return pass_on(std::move(loaded));
  if (auto staged = stage(content, from, offset); !staged) return pass_on(std::move(staged));
  if (!file.is_synchronous || file.kind != FileKind::Isolated || !content.is_whole()) return Stale{};
  return commit_if_dirty(file);
}

Result<void> Filesystem::write_back(Ino ino, std::span<const std::byte> from, std::uint64_t offset) {
  const Node node = parts_.resolve(ino);
  const auto content = node.is_directory() ? nullptr : parts_.shared_content(node);
  if (!content) return fail(ErrorCode::InvalidArgument, EIO, "written back without a descriptor");
  parts_.may_be_cached[number_of(content->tensor())] = true;
  const MutexLock lock(content->mutex);
  if (auto loaded = drafts_.load_base(*content, node.ino); !loaded) return loaded;
  // The kernel writes back whole pages. Bytes behind the tensor's end are not part of it.
  // A new tensor gets the size that its file has.
  const std::uint64_t end =
      content->made() ? content->size_bytes() : parts_.model->file_range(content->tensor()).size_bytes;
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
  const MutexLock alone(content.mutex);
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
  log::warning("{}: write refused: {}", parts_.label_of(content), why.message);
  return tl::unexpected(std::move(why));
}

Result<void> Filesystem::resize(OpenFile& file, std::uint64_t size_bytes, Caller caller) {
  PendingContent& content = *file.content;
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

Result<void> Filesystem::check_settable(Ino ino) const {
  if (parts_.options.is_read_only) return fail(ErrorCode::ReadOnly, EROFS, "mounted read-only");
  const Node node = parts_.resolve(ino);
  const bool is_written =
      node.kind == Node::Kind::StagedNpy || Views::is_npy(node.ino) || Views::is_archive(node.ino);
  if (!node.is_other_form() || (is_written && parts_.options.allows_edits) || parts_.drafts.find(node.ino))
    return {};
  return fail(ErrorCode::ReadOnly, EPERM, "this view is read-only: its times, mode and owner can't be set");
}

Result<void> Filesystem::resize_by_name(Ino ino, std::uint64_t size_bytes, pid_t caller) {
  const Node node = parts_.resolve(ino);
  if (!node.exists()) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  if (node.is_directory()) return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
  if (auto settable = check_settable(ino); !settable) return settable;
  if (node.is_other_form() || node.kind == Node::Kind::Draft) {
    auto file = parts_.open_files.just_opened(node.ino, caller);
    if (!file) return pass_on(std::move(file));
    if (*file != nullptr) return resize(**file, size_bytes, {});
    const auto draft = parts_.drafts.find(node.ino);
    if (!draft || !is_scratch(*draft))
      return fail(ErrorCode::InvalidArgument, EPERM, "open it to change its size");
    const MutexLock lock(draft->content->mutex);
    return draft->content->resize(size_bytes);
  }
  const std::uint64_t due = parts_.model->tensor(node.tensor).data.size_bytes;
  if (size_bytes == due) return {};
  if (size_bytes == 0) {
    auto file = parts_.open_files.just_opened(node.ino, caller);
    if (!file) return pass_on(std::move(file));
    if (*file != nullptr) return resize(**file, 0, {});
  }
  return fail(ErrorCode::WrongSize, size_bytes > due ? EFBIG : EINVAL, "a tensor's size is fixed");
}

}  // namespace stfs
