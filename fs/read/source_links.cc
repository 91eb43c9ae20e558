// Reads the source directory, and numbers its entries.
#include "fs/read/source_links.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "core/journal/journal_format.h"
#include "core/model/scratch_directory.h"

namespace stfs {
namespace {

/// Whether the entry exists and is no directory on which something is mounted. Asks no file system that is
/// mounted there: it may be our own.
bool is_there_and_bare(int directory, const std::string& name) {
  constexpr int kFlags = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC;
  struct statx found {};
  if (::statx(directory, name.c_str(), kFlags, 0, &found) != 0) return false;
  return !S_ISDIR(found.stx_mode) || (found.stx_attributes & STATX_ATTR_MOUNT_ROOT) == 0;
}

}  // namespace

SourceLinks::SourceLinks(std::filesystem::path directory, IsLeftOut is_left_out)
    : directory_(std::move(directory)),
      source_(open_directory_path(directory_)),
      is_left_out_(std::move(is_left_out)) {
  open();
}

std::optional<SourceLinks::Number> SourceLinks::find(std::string_view name) const {
  if (!is_linked(name)) return std::nullopt;
  const UniqueFd source = open();
  if (!source || !is_there_and_bare(source.get(), std::string(name))) return std::nullopt;
  return link_named(name);
}

std::vector<std::pair<SourceLinks::Number, std::string>> SourceLinks::list() const {
  UniqueFd source = open();
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
  std::ranges::sort(names);  // new links get their numbers in the order of their names
  std::vector<std::pair<Number, std::string>> links;
  for (std::string& name : names) {
    const Number link = link_named(name);
    links.emplace_back(link, std::move(name));
  }
  std::ranges::sort(links);
  return links;
}

bool SourceLinks::has(Number link) const {
  const std::scoped_lock lock(mutex_);
  return link < names_.size();
}

std::string SourceLinks::name(Number link) const {
  const std::scoped_lock lock(mutex_);
  return names_[link];
}

std::optional<SourceLinks::Source> SourceLinks::source() const {
  const std::scoped_lock lock(mutex_);
  return found_;
}

void SourceLinks::visit_known(const std::function<void(std::string_view name)>& visit) const {
  const std::scoped_lock lock(mutex_);
  for (const std::string& name : names_) visit(name);
}

UniqueFd SourceLinks::open() const {
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

bool SourceLinks::is_linked(std::string_view name) const {
  const bool is_path = name == "." || name == ".." || name.find('/') != std::string_view::npos;
  return !is_path && !is_journal_file_name(name) && !is_scratch_directory_name(name) && !is_left_out_(name);
}

SourceLinks::Number SourceLinks::link_named(std::string_view name) const {
  const std::scoped_lock lock(mutex_);
  if (const auto known = links_.find(name); known != links_.end()) return known->second;
  const Number made = names_.size();
  links_.emplace(names_.emplace_back(name), made);
  return made;
}

}  // namespace stfs
