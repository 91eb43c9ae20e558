// Shows, makes, moves and deletes the files of a source directory beside its models.
#include "fs/model/source_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

#include "core/archive/archive.h"
#include "core/journal/journal_format.h"
#include "core/model/model_directory.h"
#include "core/storage/new_file.h"
#include "core/storage/system_file.h"
#include "fs/base/process.h"

namespace stfs {
namespace {

constexpr mode_t kPermissionBits = 0777;

}  // namespace

SourceDirectory::SourceDirectory(const std::filesystem::path& path, const Options& options)
    : options_(options), links_(path, [this](std::string_view name) { return is_model_(name); }) {}

bool SourceDirectory::is_archive_name(std::string_view file_name) {
  return stfs::is_archive_name(file_name);
}

void SourceDirectory::disguise(Stat& st) const {
  st.st_mode &= ~options_.umask;
  st.st_uid = options_.uid.value_or(st.st_uid);
  st.st_gid = options_.gid.value_or(st.st_gid);
}

std::optional<struct stat> SourceDirectory::status() const {
  Stat st{};
  const UniqueFd opened = links_.open();
  const auto source = links_.source();
  if (!opened || !source || ::fstat(opened.get(), &st) != 0) return std::nullopt;
  st.st_mode =
      (st.st_mode & ~kPermissionBits) | source->permissions.mode;  // as its access control list allows
  disguise(st);
  return st;
}

Result<Ino> SourceDirectory::find(std::string_view name, bool with_links) const {
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = arriving_.find(name); found != arriving_.end()) return found->second;
  }
  if (const auto link = with_links ? links_.find(name) : std::nullopt) return kLinks + *link;
  return fail(ErrorCode::NotFound, ENOENT, "no such file in the directory of the models");
}

mode_t SourceDirectory::file_type(Ino ino) const {
  return ino >= kFiles ? S_IFREG : ino >= kMadeDirectories ? S_IFDIR : S_IFLNK;
}

Result<struct stat> SourceDirectory::attributes(Ino ino) const {
  if (ino >= kFiles) {
    const auto made = file(ino);
    if (!made) return no_such_inode(ino);
    auto st = made->status();
    if (!st) return st;
    st->st_ino = ino;
    disguise(*st);
    return st;
  }
  const bool is_link = ino < kMadeDirectories;
  const SourceLinks::Number link = ino - (is_link ? kLinks : kMadeDirectories);
  if (!links_.has(link)) return no_such_inode(ino);
  Stat st{};
  if (::fstatat(links_.descriptor(), links_.name(link).c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0)
    return fail_system(errno, links_.target(link), "stat");
  disguise(st);
  st.st_ino = ino;
  if (!is_link) return S_ISDIR(st.st_mode) ? Result<Stat>(st) : Result<Stat>(no_such_inode(ino));
  constexpr mode_t kAll = 0777;  // nobody asks a link's permissions
  st.st_mode = S_IFLNK | kAll;
  st.st_nlink = 1;
  st.st_size = static_cast<off_t>(links_.target(link).size());
  st.st_blocks = 0;
  return st;
}

Result<std::string> SourceDirectory::read_link(Ino ino) const {
  if (ino >= kMadeDirectories || !links_.has(ino - kLinks))
    return fail(ErrorCode::InvalidArgument, EINVAL, "is no symbolic link");
  std::string target = links_.target(ino - kLinks);
  if (target.size() >= PATH_MAX)
    return fail(ErrorCode::InvalidArgument, ENAMETOOLONG,
                "the path in the directory of the models is too long");
  return target;
}

void SourceDirectory::list(std::uint64_t position, const Directory::VisitEntry& visit,
                           bool with_links) const {
  const auto is_listed = [](std::string_view name) {
    return !name.starts_with('.') && !is_archive_name(name);
  };
  for (const auto& [link, name] : with_links ? links_.list() : decltype(links_.list())()) {
    if (link < position || !is_listed(name)) continue;
    if (!visit(name, kLinks + link, link + 1)) return;
  }
  std::vector<std::pair<Ino, std::string>> arriving;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [name, ino] : arriving_) arriving.emplace_back(ino, name);
  }
  std::ranges::sort(arriving);
  for (const auto& [ino, name] : arriving) {
    if (ino >= position && !visit(name, ino, ino + 1)) return;
  }
}

void SourceDirectory::note_lookup(Ino ino) const {
  const std::scoped_lock lock(mutex_);
  if (const auto found = files_.find(ino); found != files_.end()) ++found->second.lookups;
}

void SourceDirectory::forget(Ino ino, std::uint64_t lookups) const {
  const std::scoped_lock lock(mutex_);
  const auto found = files_.find(ino);
  if (found == files_.end()) return;
  found->second.lookups -= std::min(found->second.lookups, lookups);
  drop_unused(found);
}

void SourceDirectory::drop_unused(std::map<Ino, Entry>::iterator entry) const {
  if (entry->second.lookups == 0 && entry->second.descriptors == 0) files_.erase(entry);
}

Result<void> SourceDirectory::check_name(std::string_view name) const {
  if (!options_.allows_new) {
    return fail(ErrorCode::ReadOnly, EPERM,
                "mounted with edit=off: nothing can be made, moved or removed here");
  }
  if (name == kArchiveSuffix || is_journal_file_name(name))
    return fail(ErrorCode::InvalidArgument, EPERM, "safetensorsfs itself uses this name");
  return {};
}

Result<void> SourceDirectory::give_to(int descriptor, mode_t mode, Maker maker) const {
  Stat st{};
  Stat above{};
  if (::fstat(descriptor, &st) != 0 || ::fstat(links_.descriptor(), &above) != 0)
    return fail_system(errno, path().string(), "stat");
  const bool keeps_group = (above.st_mode & S_ISGID) != 0;
  const gid_t gid = keeps_group ? st.st_gid : maker.gid;
  if ((st.st_uid != maker.uid || st.st_gid != gid) && ::fchown(descriptor, maker.uid, gid) != 0 &&
      st.st_uid != maker.uid) {
    return fail(ErrorCode::System, EACCES,
                fmt::format("{}: this mount can make files of user {} only, not of user {}", path().string(),
                            st.st_uid, maker.uid));
  }
  constexpr mode_t kKept = S_ISGID;  // new directories inherit it
  if (::fchmod(descriptor, (mode & kPermissionBits) | (st.st_mode & kKept)) != 0)
    return fail_system(errno, path().string(), "set the mode of a new file");
  return {};
}

Result<std::unique_ptr<File>> SourceDirectory::make_file(const std::string& name, bool is_archive,
                                                         mode_t mode, Maker maker) {
  std::unique_ptr<File> file;
  if (is_archive) {
    auto made = system_storage().create_unnamed(path() / new_temporary_file_name());
    if (!made) return made;
    file = std::move(*made);
  } else {
    constexpr int kFlags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    UniqueFd fd(::openat(links_.descriptor(), name.c_str(), kFlags, mode & kPermissionBits));
    if (!fd) return fail_system(errno, (path() / name).string(), "create");
    file = make_system_file(std::move(fd), (path() / name).string());
  }
  if (auto given = give_to(file->descriptor(), mode, maker); !given) {
    if (!is_archive) ::unlinkat(links_.descriptor(), name.c_str(), 0);
    return pass_on(std::move(given));
  }
  return file;
}

Result<SourceDirectory::Created> SourceDirectory::create(std::string_view name, int flags, mode_t mode,
                                                         Maker maker, pid_t opener) {
  if (auto checked = check_name(name); !checked) return pass_on(std::move(checked));
  const bool is_archive = is_archive_name(name);
  if (is_archive && find(name)) return fail(ErrorCode::System, EEXIST, "the file exists");
  auto file = make_file(std::string(name), is_archive, mode, maker);
  if (!file) return pass_on(std::move(file));
  auto made = std::make_shared<MadeFile>(std::move(*file), path() / name,
                                         is_archive ? MadeFile::Kind::Archive : MadeFile::Kind::Plain);
  Ino ino = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (is_archive && !arriving_.emplace(name, next_).second)
      return fail(ErrorCode::System, EEXIST, "another program is making this file");
    ino = next_++;
    files_.emplace(ino, Entry{.made = std::move(made)});
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
  ++files_.at(ino).descriptors;
  return opened;
}

Result<struct stat> SourceDirectory::make_directory(std::string_view name, mode_t mode, Maker maker) {
  if (auto checked = check_name(name); !checked) return pass_on(std::move(checked));
  if (is_archive_name(name))
    return fail(ErrorCode::InvalidArgument, EPERM, "a directory can't have the name of an archive");
  const std::string made(name);
  if (::mkdirat(links_.descriptor(), made.c_str(), mode & kPermissionBits) != 0)
    return fail_system(errno, (path() / made).string(), "create");
  const UniqueFd opened(
      ::openat(links_.descriptor(), made.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  auto given = opened ? give_to(opened.get(), mode, maker)
                      : Result<void>(fail_system(errno, (path() / made).string(), "open"));
  if (!given) {
    ::unlinkat(links_.descriptor(), made.c_str(), AT_REMOVEDIR);
    return pass_on(std::move(given));
  }
  const auto link = links_.find(name);
  return link ? attributes(kMadeDirectories + *link)
              : Result<Stat>(fail(ErrorCode::System, ESTALE, "the directory has gone again"));
}

Result<void> SourceDirectory::remove(std::string_view name) {
  if (auto checked = check_name(name); !checked) return checked;
  const std::string gone(name);
  if (::unlinkat(links_.descriptor(), gone.c_str(), 0) == 0) return {};
  if (errno == EISDIR && ::unlinkat(links_.descriptor(), gone.c_str(), AT_REMOVEDIR) == 0) return {};
  return fail_system(errno, (path() / gone).string(), "remove");
}

Result<void> SourceDirectory::rename(std::string_view name, std::string_view new_name, unsigned flags) {
  for (const std::string_view one : {name, new_name}) {
    if (auto checked = check_name(one); !checked) return checked;
  }
  if ((flags & ~unsigned{RENAME_NOREPLACE}) != 0)
    return fail(ErrorCode::InvalidArgument, EINVAL, "files can't be exchanged here");
  const int directory = links_.descriptor();
  if (::renameat2(directory, std::string(name).c_str(), directory, std::string(new_name).c_str(), flags) == 0)
    return {};
  return fail_system(errno, (path() / name).string(), "rename");
}

Result<void> SourceDirectory::change(std::string_view name, const Change& change) {
  if (auto checked = check_name(name); !checked) return checked;
  const int directory = links_.descriptor();
  const std::string file(name);
  const auto failed = [&] { return fail_system(errno, (path() / file).string(), "change attributes"); };
  constexpr uid_t kSameUser = ~uid_t{0};
  constexpr gid_t kSameGroup = ~gid_t{0};
  if ((change.uid || change.gid) && ::fchownat(directory, file.c_str(), change.uid.value_or(kSameUser),
                                               change.gid.value_or(kSameGroup), 0) != 0)
    return failed();
  if (change.permissions &&
      ::fchmodat(directory, file.c_str(), *change.permissions & kPermissionBits, 0) != 0)
    return failed();
  if (change.mtime) {
    const struct timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, *change.mtime};
    if (::utimensat(directory, file.c_str(), times, 0) != 0) return failed();
  }
  return {};
}

Result<void> SourceDirectory::settle_archive(std::string_view name) {
  const std::filesystem::path file = path() / name;
  auto archive = Archive::open(file, Access::ReadOnly);
  if (!archive) {
    // mv(1) takes EINVAL for a directory that is moved into itself.
    if (archive.error().errno_value == EINVAL) archive.error().errno_value = ENODATA;
    return pass_on(std::move(archive));
  }
  Stat of_name{};
  if (::fstatat(links_.descriptor(), std::string(name).c_str(), &of_name, AT_SYMLINK_NOFOLLOW) != 0)
    return fail_system(errno, file.string(), "stat");
  std::vector<std::shared_ptr<MadeFile>> made;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [ino, entry] : files_) made.push_back(entry.made);
  }
  for (const auto& one : made) {
    const auto st = one->status();
    if (st && st->st_dev == of_name.st_dev && st->st_ino == of_name.st_ino) one->seal();
  }
  if (options_.durability != Durability::Power) return {};
  const UniqueFd opened(
      ::openat(links_.descriptor(), std::string(name).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened || ::fsync(opened.get()) != 0) return fail_system(errno, file.string(), "sync");
  return {};
}

Result<void> SourceDirectory::sync_names() {
  return options_.durability == Durability::Power ? system_storage().sync_directory(path()) : Result<void>();
}

Result<OpenFile*> SourceDirectory::open(Ino ino, int flags) {
  if (ino < kFiles) return fail(ErrorCode::InvalidArgument, ELOOP, "is a symbolic link");
  if (!file(ino)) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  if ((flags & O_ACCMODE) == O_RDONLY) return nullptr;
  return fail(ErrorCode::Busy, EBUSY, "another program is making this file");
}

std::shared_ptr<MadeFile> SourceDirectory::file(Ino ino) const {
  const std::scoped_lock lock(mutex_);
  const auto found = files_.find(ino);
  return found == files_.end() ? nullptr : found->second.made;
}

std::shared_ptr<MadeFile> SourceDirectory::arriving(std::string_view name) const {
  const std::scoped_lock lock(mutex_);
  const auto found = arriving_.find(name);
  return found == arriving_.end() ? nullptr : files_.at(found->second).made;
}

Result<void> SourceDirectory::give_name(MadeFile& made) {
  return made.give_name(system_storage(), options_.durability);
}

void SourceDirectory::end_arriving(const MadeFile& made) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(arriving_, [&](const auto& named) {
    const auto entry = files_.find(named.second);
    return entry == files_.end() || entry->second.made.get() == &made;
  });
}

void SourceDirectory::rename_arriving(std::string_view name, std::string_view new_name, bool replaces) {
  const std::scoped_lock lock(mutex_);
  const auto found = arriving_.find(name);
  if (found == arriving_.end()) return;
  const Ino ino = found->second;
  files_.at(ino).made->move_to(path() / new_name, replaces);
  arriving_.erase(found);
  arriving_[std::string(new_name)] = ino;
}

std::shared_ptr<MadeFile> SourceDirectory::release(OpenFile* file) {
  const std::scoped_lock lock(mutex_);
  const auto entry = files_.find(file->ino);
  open_.erase(file);
  if (entry == files_.end()) return nullptr;
  auto made = entry->second.made;
  --entry->second.descriptors;
  const bool is_last = entry->second.descriptors == 0;
  drop_unused(entry);
  return is_last ? made : nullptr;
}

}  // namespace stfs
