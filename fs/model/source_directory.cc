#include "fs/model/source_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/shell_word.h"
#include "core/journal/journal_format.h"
#include "core/model/model_directory.h"
#include "core/model/scratch_directory.h"
#include "core/storage/foreign_mount.h"
#include "core/storage/new_file.h"
#include "core/storage/system_file.h"
#include "core/storage/trusted_links.h"
#include "fs/base/log.h"
#include "fs/base/process.h"
#include "fs/base/user_counts.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

constexpr mode_t kPermissionBits = 0777;

std::string scratch_name(std::string_view model) {
  return ScratchDirectory::path_of(model).string();
}

/// Logs the scratch files of models that were deleted.
void log_left_scratch_files(const std::filesystem::path& directory) {
  std::error_code failed;
  std::filesystem::directory_iterator at(directory, failed);
  for (; !failed && at != std::filesystem::directory_iterator(); at.increment(failed)) {
    const std::string name = at->path().filename().string();
    if (!is_scratch_directory_name(name)) continue;
    const std::string model = std::filesystem::path(name.substr(1)).stem().string();
    const auto there = is_archive_name(model) ? system_storage().status_of_name(directory / model)
                                              : Result<FileStatus>(FileStatus{});
    if (there || there.error().errno_value != ENOENT) continue;
    log::info("{}: there is no such model, but its scratch files: `rm -r {}` deletes them",
              (directory / model).string(), shell_word(at->path().native()));
  }
}

}  // namespace

SourceDirectory::SourceDirectory(const std::filesystem::path& path, const FilesystemOptions& options)
    : path_(path),
      options_(options),
      tree_(path, {}, [this](std::string_view name) { return name == kViewsDirectory || is_model_(name); }),
      files_(tree_, options_, {}) {
  log_left_scratch_files(path_);
}

bool SourceDirectory::is_archive_name(std::string_view file_name) {
  return stfs::is_archive_name(file_name);
}

void SourceDirectory::disguise(Stat& st) const {
  st.st_mode &= ~options_.umask;
  st.st_uid = options_.uid.value_or(st.st_uid);
  st.st_gid = options_.gid.value_or(st.st_gid);
}

Result<std::optional<struct stat>> SourceDirectory::status() const {
  const auto found = tree_.files().find("");
  const int why = found ? 0 : found.error().errno_value;
  if (why == EMFILE || why == ENFILE) return tl::unexpected(found.error());
  if (!found) return std::optional<Stat>();
  Stat st = found->entry.status;
  st.st_mode = (st.st_mode & ~kPermissionBits) | found->entry.permissions.mode;
  disguise(st);
  return st;
}

std::optional<uid_t> SourceDirectory::owner_of(const std::string& name) const {
  Stat st{};
  const auto named = open_entry(descriptor(), name, O_PATH, name);
  if (!named || ::fstat(named->get(), &st) != 0) return std::nullopt;
  return st.st_uid;
}

std::filesystem::path SourceDirectory::path_of(Ino ino) const {
  if (const auto made = file(ino)) return made->path();
  const auto below = tree_.path_of(node(ino).ino);
  return below && !below->empty() ? path_ / *below : path_;
}

Result<Ino> SourceDirectory::find(Ino directory, std::string_view name, bool shows_entries) {
  if (directory != kRootIno) return tree_.find(directory, name);
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = arriving_.find(name); found != arriving_.end()) return found->second;
  }
  if (shows_entries) return tree_.find(SourceTree::kDirectory, name);
  return fail(ErrorCode::NotFound, ENOENT, "no such file in the directory of the models");
}

mode_t SourceDirectory::file_type(Ino ino) const {
  return !is_made(ino) && node(ino).is_directory() ? S_IFDIR : S_IFREG;
}

Result<struct stat> SourceDirectory::attributes(Ino ino) const {
  if (!is_made(ino)) return files_.attributes(node(ino));
  const auto made = file(ino);
  if (!made) return no_such_inode(ino);
  auto st = made->status();
  if (!st) return st;
  st->st_ino = ino;
  disguise(*st);
  return st;
}

void SourceDirectory::list(Ino directory, std::uint64_t position, const Directory::VisitEntry& visit) const {
  tree_.list(directory, position, [&](std::string_view name, Ino ino, std::uint64_t next) {
    return visit(name, ino == SourceTree::kDirectory ? kRootIno : ino, next);
  });
}

void SourceDirectory::list_root(std::uint64_t position, const Directory::VisitEntry& visit,
                                bool shows_entries) const {
  constexpr std::uint64_t kArriving = std::uint64_t{1} << 62U;  // all names of the tree are before
  bool goes_on = true;
  if (shows_entries && position <= kArriving) {
    tree_.list_names(SourceTree::kDirectory, position,
                     [&](std::string_view name, Ino ino, std::uint64_t next) {
                       goes_on = is_archive_name(name) || visit(name, ino, next);
                       return goes_on;
                     });
  }
  if (!goes_on) return;
  std::vector<std::pair<Ino, std::string>> arriving;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [name, ino] : arriving_) arriving.emplace_back(ino, name);
  }
  std::ranges::sort(arriving);
  for (const auto& [ino, name] : arriving) {
    if (kArriving + ino >= position && !visit(name, ino, kArriving + ino + 1)) return;
  }
}

void SourceDirectory::note_lookup(Ino ino) const {
  if (!is_made(ino)) return tree_.note_lookup(ino);
  const std::scoped_lock lock(mutex_);
  if (const auto found = made_.find(ino); found != made_.end()) ++found->second.lookups;
}

void SourceDirectory::forget(Ino ino, std::uint64_t lookups) const {
  if (!is_made(ino)) return tree_.forget(ino, lookups);
  const std::scoped_lock lock(mutex_);
  const auto found = made_.find(ino);
  if (found == made_.end()) return;
  found->second.lookups -= std::min(found->second.lookups, lookups);
  drop_unused(found);
}

void SourceDirectory::drop_unused(std::map<Ino, Entry>::iterator entry) const {
  if (entry->second.lookups == 0 && entry->second.descriptors == 0) made_.erase(entry);
}

Result<void> SourceDirectory::check_name(std::string_view name) const {
  if (options_.is_read_only) return fail(ErrorCode::ReadOnly, EROFS, "mounted read-only");
  if (!options_.allows_edits) {
    return fail(ErrorCode::ReadOnly, EPERM,
                "mounted with edit=off: nothing can be made, moved or removed here");
  }
  if (name == kArchiveSuffix || is_journal_file_name(name))
    return fail(ErrorCode::InvalidArgument, EPERM, "safetensorsfs itself uses this name");
  return {};
}

Result<SourceDirectory::Created> SourceDirectory::create(std::string_view name, int flags, mode_t mode,
                                                         Maker maker, pid_t opener) {
  if (auto checked = check_name(name); !checked) return pass_on(std::move(checked));
  if (find(kRootIno, name)) return fail(ErrorCode::System, EEXIST, "the file exists");
  auto share = take_descriptor(maker.uid);
  if (!share) return pass_on(std::move(share));
  auto file = system_storage().create_unnamed(opened_path() / new_temporary_file_name());
  if (!file) return pass_on(std::move(file));
  const std::filesystem::path path = path_ / name;
  if (auto given = give_to((*file)->descriptor(), descriptor(), mode, maker, path.string()); !given)
    return pass_on(std::move(given));
  auto made = std::make_shared<MadeFile>(std::move(*file), path, opened_path());
  Ino ino = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (!arriving_.emplace(name, next_).second)
      return fail(ErrorCode::System, EEXIST, "another program is making this file");
    ino = next_++;
    made_.emplace(ino, Entry{.made = std::move(made), .share = std::move(*share)});
  }
  OpenFile* const opened = add_open(ino, flags, opener);
  auto st = attributes(ino);
  if (!st) return pass_on(std::move(st));
  return Created{*st, opened};
}

OpenFile* SourceDirectory::add_open(Ino ino, int flags, pid_t opener) {
  auto file = std::make_unique<OpenFile>();
  file->ino = ino;
  file->kind = FileKind::New;
  file->opener = opener;
  file->opener_process = process_of(opener);
  file->appends = (flags & O_APPEND) != 0;
  OpenFile* const opened = file.get();
  const std::scoped_lock lock(mutex_);
  open_.emplace(opened, std::move(file));
  ++made_.at(ino).descriptors;
  return opened;
}

Result<void> SourceDirectory::remove(std::string_view name) {
  if (auto checked = check_name(name); !checked) return checked;
  if (auto allowed = check_sticky(name); !allowed) return allowed;
  files_.seal(name);
  if (::unlinkat(descriptor(), std::string(name).c_str(), 0) != 0)
    return fail_system(errno, (path_ / name).string(), "remove");
  const std::string scratch = scratch_name(name);
  // Another user's may be left of an earlier model. With the sticky bit these stay, as with rmdir(2).
  int why = check_sticky(scratch) ? 0 : EPERM;
  if (why == 0 && ::unlinkat(descriptor(), scratch.c_str(), AT_REMOVEDIR) != 0) why = errno;
  if (why == ENOTEMPTY || why == EPERM) {
    log::warning("{}: was deleted, its scratch files stay: `rm -r {}` deletes them", (path_ / name).string(),
                 shell_word((path_ / scratch).native()));
  }
  return {};
}

void SourceDirectory::move_scratch_files(std::string_view name, std::string_view new_name) const {
  const std::string from = scratch_name(name);
  const std::string to = scratch_name(new_name);
  if (!owner_of(from)) return;  // there are none
  const bool may_move = check_sticky(from) && check_sticky(to);
  if (may_move && ::renameat(descriptor(), from.c_str(), descriptor(), to.c_str()) == 0) return;
  const int why = may_move ? errno : EPERM;
  if (why == ENOENT) return;
  log::warning("{}: the scratch files of {} stay there: {}: {}", (path_ / from).string(), name,
               (path_ / to).string(), std::generic_category().message(why));
}

Result<void> SourceDirectory::rename(std::string_view name, std::string_view new_name, unsigned flags) {
  for (const std::string_view one : {name, new_name}) {
    if (auto checked = check_name(one); !checked) return checked;
  }
  if ((flags & ~unsigned{RENAME_NOREPLACE}) != 0)
    return fail(ErrorCode::InvalidArgument, EINVAL, "files can't be exchanged here");
  for (const std::string_view one : {name, new_name}) {
    if (auto allowed = check_sticky(one); !allowed) return allowed;
  }
  files_.seal(name);
  tree_.keep_open(std::string(new_name));
  const int directory = descriptor();
  if (::renameat2(directory, std::string(name).c_str(), directory, std::string(new_name).c_str(), flags) != 0)
    return fail_system(errno, (path_ / name).string(), "rename");
  files_.seal(new_name);
  move_scratch_files(name, new_name);
  return {};
}

Result<FollowedFile> SourceDirectory::find_archive(std::string_view name, const FileIdentity& archive) const {
  auto opened = follow_trusted_links(descriptor(), std::string(name));
  if (!opened) return fail_system(opened.error().errno_value, (path_ / name).string(), "open");
  const auto there = system_storage().status(fmt::format("/proc/self/fd/{}", opened->fd.get()));
  if (there && there->identity.same_file(archive)) return opened;
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              (path_ / name).string() + ": is another file than the one that the mount shows");
}

Result<void> SourceDirectory::check_archive(std::string_view name, const FileIdentity& archive) const {
  auto found = find_archive(name, archive);
  return found ? Result<void>() : pass_on(std::move(found));
}

Result<void> SourceDirectory::check_place() const {
  Stat ours{};
  if (::fstat(descriptor(), &ours) != 0) return fail_system(errno, path_.string(), "stat");
  const auto there = follow_trusted_links(AT_FDCWD, path_ / "");
  // Another user's mount, which is not entered, is another directory, too.
  if (!there && there.error().errno_value != EXDEV) return tl::unexpected(there.error());
  if (there && there->status.st_dev == ours.st_dev && there->status.st_ino == ours.st_ino) return {};
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              path_.string() +
                  ": is another directory than the one that is mounted: until that one is back at its path, "
                  "no model is opened: unmount and mount again to see the new one");
}

Result<ModelDirectory> SourceDirectory::list_models() const {
  return list_model_directory(opened_path());
}

Result<void> SourceDirectory::change(std::string_view name, const FileIdentity& archive,
                                     const ServedFiles::Change& change) {
  if (auto checked = check_name(name); !checked) return checked;
  const auto failed = [&] { return fail_system(errno, (path_ / name).string(), "change attributes"); };
  // The name may be another user's, and may lead elsewhere by the next call.
  const auto opened = find_archive(name, archive);
  if (!opened) return tl::unexpected(opened.error());
  const std::string file = fmt::format("/proc/self/fd/{}", opened->fd.get());
  constexpr uid_t kSameUser = ~uid_t{0};
  constexpr gid_t kSameGroup = ~gid_t{0};
  if ((change.uid || change.gid) && ::fchownat(AT_FDCWD, file.c_str(), change.uid.value_or(kSameUser),
                                               change.gid.value_or(kSameGroup), 0) != 0)
    return failed();
  if (change.permissions && ::fchmodat(AT_FDCWD, file.c_str(), *change.permissions & kPermissionBits, 0) != 0)
    return failed();
  if (change.mtime) {
    const struct timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, *change.mtime};
    if (::utimensat(AT_FDCWD, file.c_str(), times, 0) != 0) return failed();
  }
  return {};
}

Result<void> SourceDirectory::settle_archive(std::string_view name) {
  const std::filesystem::path file = path_ / name;
  auto archive = Archive::open(file, Access::ReadOnly, system_storage(), Io::Auto, Links::Trusted);
  if (!archive) {
    // mv(1) takes EINVAL for a directory that is moved into itself.
    if (archive.error().errno_value == EINVAL) archive.error().errno_value = ENODATA;
    return pass_on(std::move(archive));
  }
  if (options_.commit.durability != Durability::Power) return {};
  const auto opened =
      open_entry(descriptor(), std::string(name), O_RDONLY | O_NONBLOCK | O_NOCTTY, file.string());
  if (!opened) return tl::unexpected(opened.error());
  if (::fsync(opened->get()) != 0) return fail_system(errno, file.string(), "sync");
  return {};
}

Result<void> SourceDirectory::sync_names() {
  return options_.commit.durability == Durability::Power ? system_storage().sync_directory(opened_path())
                                                         : Result<void>();
}

Result<OpenFile*> SourceDirectory::open(Ino ino, int flags) {
  if (!file(ino)) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  if ((flags & O_ACCMODE) == O_RDONLY) return nullptr;
  return fail(ErrorCode::Busy, EBUSY, "another program is making this file");
}

std::shared_ptr<MadeFile> SourceDirectory::file(Ino ino) const {
  const std::scoped_lock lock(mutex_);
  const auto found = made_.find(ino);
  return found == made_.end() ? nullptr : found->second.made;
}

std::shared_ptr<MadeFile> SourceDirectory::arriving(std::string_view name) const {
  const std::scoped_lock lock(mutex_);
  const auto found = arriving_.find(name);
  return found == arriving_.end() ? nullptr : made_.at(found->second).made;
}

std::filesystem::path SourceDirectory::opened_path() const {
  return fmt::format("/proc/self/fd/{}", descriptor());
}

Result<void> SourceDirectory::check_sticky(std::string_view name) const {
  return check_sticky_bit(descriptor(), std::string(name), requesting_user(), options_.uid,
                          (path_ / name).string());
}

Result<void> SourceDirectory::give_name(MadeFile& made) {
  if (const auto replacer = made.replacer()) {
    const std::filesystem::path path = made.path();
    auto allowed =
        check_sticky_bit(descriptor(), path.filename().string(), *replacer, options_.uid, path.string());
    if (!allowed) {
      Error why = std::move(allowed).error();
      if (why.errno_value == EPERM) why.errno_value = EEXIST;
      made.drop(why);
      return tl::unexpected(std::move(why));
    }
  }
  return made.give_name(system_storage(), options_.commit.durability);
}

void SourceDirectory::end_arriving(const MadeFile& made) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(arriving_, [&](const auto& named) {
    const auto entry = made_.find(named.second);
    return entry == made_.end() || entry->second.made.get() == &made;
  });
}

void SourceDirectory::rename_arriving(std::string_view name, std::string_view new_name,
                                      std::optional<uid_t> replacer) {
  const std::scoped_lock lock(mutex_);
  const auto found = arriving_.find(name);
  if (found == arriving_.end()) return;
  const Ino ino = found->second;
  made_.at(ino).made->move_to(path_ / new_name, replacer);
  arriving_.erase(found);
  arriving_[std::string(new_name)] = ino;
}

std::shared_ptr<MadeFile> SourceDirectory::release(OpenFile* file) {
  const std::scoped_lock lock(mutex_);
  const auto entry = made_.find(file->ino);
  open_.erase(file);
  if (entry == made_.end()) return nullptr;
  auto made = entry->second.made;
  --entry->second.descriptors;
  const bool is_last = entry->second.descriptors == 0;
  drop_unused(entry);
  return is_last ? made : nullptr;
}

}  // namespace stfs
