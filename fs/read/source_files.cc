#include "fs/read/source_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <utility>

#include "core/journal/journal_format.h"
#include "core/model/scratch_directory.h"
#include "core/remote/remote_storage.h"
#include "core/storage/foreign_mount.h"
#include "core/storage/group_members.h"
#include "core/storage/made_directory.h"
#include "core/storage/new_file.h"
#include "core/storage/open_directory.h"
#include "core/storage/permissions.h"
#include "core/storage/trusted_links.h"
#include "fs/base/log.h"
#include "fs/base/user_counts.h"

namespace stfs {
namespace {

constexpr std::string_view kPrivateSuffix = ".pretrained";
constexpr const char* kCopyAttribute = "user.safetensors.copy";
constexpr int kOpenDirectory = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

std::vector<std::string> parts_of(const std::string& path) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    parts.push_back(path.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

/// Opens an entry of a private directory. A link in such a directory marks a removed file.
Result<SourceEntry> open_private_entry(int directory, const std::string& name) {
  struct stat named {};
  const auto at = open_entry(directory, name, O_PATH, name);
  if (at && ::fstat(at->get(), &named) == 0 && S_ISLNK(named.st_mode)) {
    return SourceEntry{.status = named, .permissions = {}, .is_link = true};
  }
  auto entry = open_source_entry(directory, name);
  if (entry && entry->is_link)
    return fail(ErrorCode::ArchiveChanged, ESTALE, name + ": was removed meanwhile");
  return entry;
}

/// Returns the names of a directory without `.` and `..`, with the kinds that the directory reports.
Result<std::vector<std::pair<std::string, unsigned char>>> entries_of(UniqueFd directory) {
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(directory.get()), ::closedir);
  if (!stream) return fail_system(errno, "the directory", "read");
  static_cast<void>(directory.release());
  std::vector<std::pair<std::string, unsigned char>> entries;
  errno = 0;
  for (const dirent* entry = ::readdir(stream.get()); entry != nullptr; entry = ::readdir(stream.get())) {
    if (is_entry_name(entry->d_name)) entries.emplace_back(entry->d_name, entry->d_type);
    errno = 0;
  }
  if (errno != 0) return fail_system(errno, "the directory", "read");
  return entries;
}

/// Returns the value of the mark of a copy in a private directory.
std::string mark_of(const SourceFiles::Layer& layer, int directory) {
  struct stat parent {};
  struct stat its {};
  if (::fstat(layer.parent.get(), &parent) != 0 || ::fstat(directory, &its) != 0) return {};
  const EntryIdentity above = identity_of(layer.parent.get(), parent);
  const EntryIdentity identity = identity_of(directory, its);
  return fmt::format("{} {} {} {} {}", above.inode, above.birth_ns, identity.inode, identity.birth_ns,
                     layer.name);
}

bool has_mark(int file, const std::string& mark) {
  std::string found(mark.size() + 1, '\0');
  const ssize_t size = ::fgetxattr(file, kCopyAttribute, found.data(), found.size());
  return size == static_cast<ssize_t>(mark.size()) && found.compare(0, mark.size(), mark) == 0;
}

bool is_link(int directory, const std::string& name, unsigned char kind) {
  if (kind != DT_UNKNOWN) return kind == DT_LNK;
  struct stat named {};
  const auto at = open_entry(directory, name, O_PATH, name);
  return at && ::fstat(at->get(), &named) == 0 && S_ISLNK(named.st_mode);
}

}  // namespace

std::string private_directory_name(std::string_view delta_file_name) {
  return std::string(delta_file_name).append(kPrivateSuffix);
}

SourceFiles::SourceFiles(const std::filesystem::path& source,
                         const std::vector<std::filesystem::path>& deltas, IsLeftOut is_left_out)
    : is_left_out_(std::move(is_left_out)), companions_(companions_at(source)) {
  for (auto delta = deltas.rbegin(); delta != deltas.rend(); ++delta) {
    const std::string file = delta->filename().string();
    const std::string name = private_directory_name(file);
    layers_.push_back({.parent = open_directory_path(delta->parent_path()),
                       .name = name,
                       .delta = file,
                       .path = delta->parent_path() / name});
  }
  UniqueFd directory = open_directory_path(source);
  if (companions_) {
    auto opened = companions_->open();
    if (!opened) log::warning("{}: pretrained/ lacks its files: {}", source.native(), opened.error().message);
    if (opened) directory = std::move(*opened);
  }
  layers_.push_back({.parent = std::move(directory), .name = ".", .delta = {}, .path = source});
}

bool SourceFiles::is_shown(const std::string& path) const {
  const std::string name = path.substr(path.rfind('/') + 1);  // all, without a slash
  if (is_journal_file_name(name) || is_scratch_directory_name(name)) return false;
  return name.size() != path.size() || !is_left_out_(name);
}

Result<struct stat> SourceFiles::delta_of(const Layer& layer) {
  const auto found = follow_trusted_links(layer.parent.get(), layer.delta);
  if (found) return found->status;
  return fail_system(found.error().errno_value, (layer.path.parent_path() / layer.delta).string(), "stat");
}

mode_t SourceFiles::private_mode(const struct stat& delta, gid_t gid) {
  constexpr unsigned kReadToSearch = 2;
  const mode_t readers = NewFileMode{delta.st_mode & 0444, delta.st_gid}.in_group(gid);
  return S_IRWXU | readers | readers >> kReadToSearch;
}

Result<void> SourceFiles::check_private(const Layer& layer, int directory) const {
  struct stat its {};
  if (::fstat(directory, &its) != 0) return fail_system(errno, layer.path.string(), "stat");
  const auto delta = delta_of(layer);
  if (its.st_uid != 0 && !is_same_user(its.st_uid, ::geteuid()) &&
      (!delta || !is_same_user(its.st_uid, delta->st_uid))) {
    return fail(
        ErrorCode::System, EPERM,
        fmt::format("{}: belongs to user {}, who is neither the mounting user nor the owner of {}: remove it",
                    layer.path.string(), its.st_uid, layer.delta));
  }
  if (is_unlimited(requesting_user())) return {};
  // An empty one may be about to get its mark, and shows nothing.
  MadeMark mark = made_mark_of(directory, layer.parent.get(), layer.name);
  if (mark == MadeMark::Valid || is_newly_made(directory)) return {};
  mark = made_mark_of(directory, layer.parent.get(), layer.name);
  if (mark == MadeMark::Valid) return {};
  constexpr mode_t kOthers = S_IRWXG | S_IRWXO;
  constexpr mode_t kWrite = S_IWGRP | S_IWOTH;
  mode_t due = delta ? private_mode(*delta, its.st_gid) & kOthers : kOthers;
  // A user who may write the delta makes and removes files through the mount, even in a directory whose mode
  // does not allow it. If the file system has attributes, such a directory has a mark.
  if (delta && mark == MadeMark::Missing) due |= delta->st_mode & kWrite;
  if ((its.st_mode & due) == due) return {};
  return fail(
      ErrorCode::System, EPERM,
      fmt::format("{}: is refused to other users: it was not made for {} by a mount, and its mode {:04o} "
                  "allows less than the mount: another user may have moved a private directory there: "
                  "move it away, or set its mode to 0{:o} if it has files of this delta",
                  layer.path.string(), layer.delta, its.st_mode & 07777U, S_IRWXU | due));
}

Result<std::optional<UniqueFd>> SourceFiles::open(const Layer& layer) const {
  if (!layer.parent) {
    if (layer.is_private()) return std::optional<UniqueFd>();
    return fail(ErrorCode::NotFound, ENOENT, layer.path.string() + ": could not be opened before the mount");
  }
  if (!layer.is_private()) {
    UniqueFd opened(::openat(layer.parent.get(), layer.name.c_str(), kOpenDirectory));
    if (!opened) return fail_system(errno, layer.path.string(), "open");
    return std::optional(std::move(opened));
  }
  auto opened = open_entry(layer.parent.get(), layer.name, kOpenDirectory, layer.path.string());
  if (!opened && opened.error().errno_value == ENOENT) return std::optional<UniqueFd>();
  RETURN_IF_ERROR(opened);
  if (auto checked = check_private(layer, opened->get()); !checked) {
    if (!was_refused_.exchange(true)) log::warning("{}", checked.error().message);
    return pass_on(std::move(checked));
  }
  return std::optional(std::move(*opened));
}

void SourceFiles::mark_copy(int descriptor, const Layer& layer) const {
  if (!layer.is_private()) return;
  const auto directory = open(layer);
  if (!directory || !*directory) return;
  const std::string mark = mark_of(layer, (*directory)->get());
  static_cast<void>(::fsetxattr(descriptor, kCopyAttribute, mark.data(), mark.size(), 0));
}

Result<void> SourceFiles::bring_companions(const std::string& name) const {
  if (!companions_) return {};
  auto brought = name.empty() ? companions_->fetch_all() : companions_->fetch(name);
  if (!brought && !has_failed_to_bring_.exchange(true))
    log::warning("{}: {}", layers_.back().path.native(), brought.error().message);
  if (brought) has_failed_to_bring_ = false;
  return brought;
}

Result<SourceFiles::Answer> SourceFiles::ask(const Layer& layer, const std::string& path) const {
  auto opened = open(layer);
  RETURN_IF_ERROR(opened);
  const bool is_remote = !layer.is_private() && !path.empty();
  const auto brought = is_remote ? bring_companions(path.substr(0, path.find('/'))) : Result<void>();
  Answer answer;
  if (!*opened) return answer;
  const std::string mark = layer.is_private() ? mark_of(layer, (*opened)->get()) : std::string();
  const auto open_entry = layer.is_private() ? open_private_entry : open_source_entry;
  SourceEntry at;
  at.file = std::move(**opened);
  if (::fstat(at.file.get(), &at.status) != 0) return fail_system(errno, layer.path.string(), "stat");
  if (path.empty()) at.permissions = permissions_of(at.status, at.file.get());
  const std::vector<std::string> parts = parts_of(path);
  std::set<std::pair<dev_t, ino_t>> passed;
  for (const std::string& part : parts) {
    passed.emplace(at.status.st_dev, at.status.st_ino);
    if (!at.file) return fail(ErrorCode::System, EACCES, path + ": may not be read");
    auto next = open_entry(at.file.get(), part);
    if (!next && next.error().errno_value == ENOENT) {
      RETURN_IF_ERROR(brought);
      return answer;
    }
    RETURN_IF_ERROR(next);
    if (layer.is_private() && next->is_link) {
      answer.is_removed = true;
      return answer;
    }
    const bool is_last = &part == &parts.back();
    if (!is_last && !S_ISDIR(next->status.st_mode)) {
      answer.is_removed = true;  // a file hides a directory
      return answer;
    }
    // A link to a directory above would make the tree endless.
    if (S_ISDIR(next->status.st_mode) && passed.contains({next->status.st_dev, next->status.st_ino}))
      return fail(ErrorCode::System, ELOOP, path + ": leads back to a directory above it");
    answer.is_behind_link = answer.is_behind_link || (next->is_link && !is_last);
    at = std::move(*next);
  }
  if (layer.is_private() && at.file && !parts.empty()) at.is_copy = has_mark(at.file.get(), mark);
  answer.entry = std::move(at);
  return answer;
}

Result<SourceFiles::Found> SourceFiles::find(const std::string& path) const {
  if (path.empty()) {
    auto answer = ask(layers_.back(), path);
    RETURN_IF_ERROR(answer);
    return Found{.entry = std::move(*answer->entry), .is_own = !top().is_private(), .is_below = true};
  }
  std::optional<Found> found;
  for (const Layer& layer : layers_) {
    auto answer = is_shown(path) ? ask(layer, path) : Answer{};
    RETURN_IF_ERROR(answer);
    const bool is_top = &layer == &top();
    if (answer->entry && found) {
      found->is_below = true;
      return std::move(*found);
    }
    if (answer->entry) {
      const bool is_own = is_top && !answer->is_behind_link && !answer->entry->is_link;
      found = Found{.entry = std::move(*answer->entry), .is_own = is_own, .is_below = !is_top};
    }
    if (answer->is_removed) break;
  }
  if (found) return std::move(*found);
  return fail(ErrorCode::NotFound, ENOENT, "no such file in the directory of the model");
}

Result<std::vector<std::string>> SourceFiles::list(const std::string& directory) const {
  const std::string prefix = directory.empty() ? directory : directory + '/';
  static_cast<void>(bring_companions({}));  // it has logged why some are missing
  std::set<std::string> names;
  std::set<std::string> removed;
  for (const Layer& layer : layers_) {
    auto answer = ask(layer, directory);
    RETURN_IF_ERROR(answer);
    if (answer->is_removed) break;
    if (!answer->entry) continue;
    if (!answer->entry->file) return fail(ErrorCode::System, EACCES, directory + ": may not be read");
    const int at = ::dup(answer->entry->file.get());
    const UniqueFd kept(at);
    const auto entries = entries_of(std::move(answer->entry->file));
    RETURN_IF_ERROR(entries);
    std::vector<std::string> removed_here;
    for (const auto& [name, kind] : *entries) {
      if (removed.contains(name) || is_temporary_file_name(name) || !is_shown(prefix + name)) continue;
      const bool is_whiteout = layer.is_private() && !names.contains(name) && is_link(at, name, kind);
      if (is_whiteout) {
        removed_here.push_back(name);
      } else {
        names.insert(name);
      }
    }
    removed.insert(removed_here.begin(), removed_here.end());
  }
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace stfs
