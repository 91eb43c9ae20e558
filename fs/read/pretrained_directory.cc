// Reads the source directory, and numbers its entries.
#include "fs/read/pretrained_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "core/journal/journal_format.h"
#include "core/model/model_directory.h"
#include "core/storage/new_file.h"

namespace stfs {
namespace {

constexpr std::uint64_t kFixedEntries = 3;  // ".", ".." and model.safetensors

UniqueFd open_directory(const std::filesystem::path& path) {
  return UniqueFd(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
}

bool is_same_file(int one, int other) {
  struct stat first {};
  struct stat second {};
  return ::fstat(one, &first) == 0 && ::fstat(other, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

/// Whether the entry exists and is no directory on which something is mounted. Asks no file system that is
/// mounted there: it may be our own.
bool is_there_and_bare(int directory, const std::string& name) {
  constexpr int kFlags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC;
  struct statx found {};
  if (::statx(directory, name.c_str(), kFlags, 0, &found) != 0) return false;
  return !S_ISDIR(found.stx_mode) || (found.stx_attributes & STATX_ATTR_MOUNT_ROOT) == 0;
}

}  // namespace

PretrainedDirectory::PretrainedDirectory(const std::filesystem::path& model,
                                         const std::vector<std::filesystem::path>& deltas,
                                         std::function<Ino()> archive)
    : directory_(model.parent_path()),
      source_(open_directory(directory_)),
      archive_(std::move(archive)),
      own_names_{model.filename().string()} {
  for (const std::filesystem::path& delta : deltas) {
    if (is_same_file(open_directory(delta.parent_path()).get(), source_.get()))
      own_names_.insert(delta.filename().string());
  }
  look();
}

Node PretrainedDirectory::node(Ino ino) const {
  if (ino == kDirectory) return {.ino = ino, .kind = Node::Kind::ViewDirectory};
  const std::scoped_lock lock(mutex_);
  if (ino - kLinks >= names_.size()) return {};
  return {.ino = ino, .kind = Node::Kind::Link};
}

Result<Ino> PretrainedDirectory::find(Ino, std::string_view name) {
  if (name == kArchiveName) return archive_();
  if (is_linked(name)) {
    const UniqueFd source = open_source();
    if (source && is_there_and_bare(source.get(), std::string(name))) return link_named(name);
  }
  return fail(ErrorCode::NotFound, ENOENT, "no such file in the directory of the model");
}

void PretrainedDirectory::list(Ino, std::uint64_t position, const VisitEntry& visit) const {
  if (position < 1 && !visit(".", kDirectory, 1)) return;
  if (position < 2 && !visit("..", kHiddenIno, 2)) return;
  if (position < kFixedEntries && !visit(kArchiveName, archive_(), kFixedEntries)) return;
  // Positions count by the links' numbers, which never change: the source directory may change meanwhile.
  std::vector<std::pair<Ino, std::string>> links;
  for (std::string& name : linked_names()) {
    const Ino link = link_named(name);
    links.emplace_back(link, std::move(name));
  }
  std::ranges::sort(links);
  for (const auto& [link, name] : links) {
    const std::uint64_t at = kFixedEntries + (link - kLinks);
    if (at >= position && !visit(name, link, at + 1)) return;
  }
}

std::string PretrainedDirectory::target(Ino link) const {
  const std::scoped_lock lock(mutex_);
  return (directory_ / names_[link - kLinks]).string();
}

std::optional<PretrainedDirectory::Source> PretrainedDirectory::source() const {
  const std::scoped_lock lock(mutex_);
  return found_;
}

void PretrainedDirectory::visit_known(
    const std::function<void(Ino directory, std::string_view name)>& visit) const {
  visit(kDirectory, kArchiveName);
  const std::scoped_lock lock(mutex_);
  for (const std::string& name : names_) visit(kDirectory, name);
}

UniqueFd PretrainedDirectory::open_source() const {
  UniqueFd opened(::openat(source_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  std::optional<Source> found;
  struct stat st {};
  if (opened && ::fstat(opened.get(), &st) == 0) {
    found = Source{.permissions = permissions_of(st, opened.get()), .mtime = st.st_mtim};
  }
  const std::scoped_lock lock(mutex_);
  found_ = found;
  return found ? std::move(opened) : UniqueFd();
}

bool PretrainedDirectory::is_linked(std::string_view name) const {
  const bool is_of_models = name.ends_with(kArchiveSuffix) || name.ends_with(kModelIndexSuffix);
  const bool is_of_this_project = is_journal_file_name(name) || is_temporary_file_name(name);
  const bool is_path = name == "." || name == ".." || name.find('/') != std::string_view::npos;
  return !is_of_models && !is_of_this_project && !is_path && !own_names_.contains(name);
}

std::vector<std::string> PretrainedDirectory::linked_names() const {
  UniqueFd source = open_source();
  if (!source) return {};
  const int descriptor = source.get();
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(descriptor), ::closedir);
  if (!stream) return {};
  static_cast<void>(source.release());
  std::vector<std::string> names;
  errno = 0;
  for (const dirent* entry = ::readdir(stream.get()); entry != nullptr; entry = ::readdir(stream.get())) {
    std::string name(entry->d_name);
    const bool may_be_directory = entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN;
    if (is_linked(name) && (!may_be_directory || is_there_and_bare(descriptor, name)))
      names.push_back(std::move(name));
    errno = 0;
  }
  if (errno != 0) return {};
  std::ranges::sort(names);
  return names;
}

Ino PretrainedDirectory::link_named(std::string_view name) const {
  const std::scoped_lock lock(mutex_);
  if (const auto known = links_.find(name); known != links_.end()) return known->second;
  const Ino made = kLinks + names_.size();
  links_.emplace(names_.emplace_back(name), made);
  return made;
}

}  // namespace stfs
