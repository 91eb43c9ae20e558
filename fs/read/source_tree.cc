#include "fs/read/source_tree.h"

#include <limits.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <span>

#include "core/base/mutex.h"

namespace stfs {
namespace {

constexpr std::size_t kMostReaders = 256;  // readers that may be closed
constexpr std::size_t kMostListings = 8;   // listings whose names are kept for their next call

std::string joined(const std::string& directory, std::string_view name) {
  return directory.empty() ? std::string(name) : directory + '/' + std::string(name);
}

tl::unexpected<Error> is_stale() {
  return fail(ErrorCode::ArchiveChanged, ESTALE, "the file was replaced or deleted");
}

}  // namespace

Node SourceTree::node(Ino ino) const {
  if (ino == kDirectory) return {.ino = ino, .kind = Node::Kind::SourceDirectory};
  const MutexLock lock(mutex_);
  const auto found = entries_.find(ino);
  if (found == entries_.end()) return {};
  return {.ino = ino,
          .kind = found->second.is_directory ? Node::Kind::SourceDirectory : Node::Kind::SourceFile};
}

Result<std::string> SourceTree::path_of(Ino ino) const {
  if (ino == kDirectory) return std::string();
  const auto found = entry(ino);
  RETURN_IF_ERROR(found);
  return found->is_gone ? Result<std::string>(is_stale()) : found->key.path;
}

Result<SourceTree::Entry> SourceTree::entry(Ino ino) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(ino);
  return found == entries_.end() ? Result<Entry>(no_such_inode(ino)) : found->second;
}

Result<Ino> SourceTree::find(Ino directory, std::string_view name) {
  const auto path = path_of(directory);
  RETURN_IF_ERROR(path);
  if (!is_entry_name(name)) return fail(ErrorCode::NotFound, ENOENT, "no such file");
  return number_of(joined(*path, name));
}

Result<Ino> SourceTree::number_of(const std::string& path) const {
  // Each name is kept with its path. A program can go down deeper, one directory after the other.
  if (path.size() >= PATH_MAX) return fail_system(ENAMETOOLONG, path.substr(0, NAME_MAX), "look up");
  const auto found = files_.find(path);
  RETURN_IF_ERROR(found);
  const bool is_directory = S_ISDIR(found->entry.status.st_mode);
  const MutexLock lock(mutex_);
  return number(key_of(path, found->entry), is_directory);
}

SourceTree::Key SourceTree::key_of(const std::string& path, const SourceEntry& entry) const {
  if (S_ISDIR(entry.status.st_mode) && files_.top().is_private()) return {path};
  return {path, entry.identity};
}

EntryIdentity SourceTree::identity_of(Ino ino) const {
  if (ino == kDirectory) return {};
  const auto found = entry(ino);
  return found ? found->key.identity : EntryIdentity{};
}

Ino SourceTree::number(Key key, bool is_directory) const {
  if (const auto known = by_key_.find(key); known != by_key_.end()) {
    Entry& entry = entries_.at(known->second);
    if (entry.is_directory == is_directory) {
      entry.used_at = ++uses_;
      return known->second;
    }
    lose_path(entries_.find(known->second));
  }
  drop_old();
  const Ino made = next_++;
  by_key_.emplace(key, made);
  entries_.emplace(made, Entry{.key = std::move(key), .is_directory = is_directory, .used_at = ++uses_});
  return made;
}

void SourceTree::drop_old() const {
  if (entries_.size() < drops_at_) return;
  for (auto at = entries_.begin(); at != entries_.end();) {
    Entry& entry = at->second;
    const bool is_old = entry.lookups == 0 && entry.used_at + kMostUnknown < uses_;
    if (is_old && !entry.is_gone) by_key_.erase(entry.key);
    if (is_old) drop_reader(entry);
    at = is_old ? entries_.erase(at) : std::next(at);
  }
  drops_at_ = 2 * std::max(kMostUnknown, entries_.size());
}

Result<std::shared_ptr<const SourceTree::Names>> SourceTree::names_of(const std::string& path,
                                                                      bool goes_on) const {
  const auto is_of_path = [&](const auto& kept) { return kept.first == path; };
  if (goes_on) {
    const MutexLock lock(mutex_);
    if (const auto kept = std::ranges::find_if(listed_, is_of_path); kept != listed_.end())
      return kept->second;
  }
  auto found = files_.list(path);
  RETURN_IF_ERROR(found);
  auto names = std::make_shared<Names>();
  // A name's position does not depend on the other names, which come and go.
  for (std::string& name : *found) {
    const std::uint64_t position = kFixedEntries + (XXH3_64bits(name.data(), name.size()) >> 2U);
    names->emplace_back(position, std::move(name));
  }
  std::ranges::sort(*names);
  const MutexLock lock(mutex_);
  std::erase_if(listed_, is_of_path);
  listed_.emplace_front(path, names);
  if (listed_.size() > kMostListings) listed_.pop_back();
  return names;
}

void SourceTree::list(Ino directory, std::uint64_t position, const VisitEntry& visit) const {
  const auto path = path_of(directory);
  if (!path) return;
  const std::size_t slash = path->rfind('/');
  const auto above = slash == std::string::npos ? Result<Ino>(kDirectory) : number_of(path->substr(0, slash));
  if (position < 1 && !visit(".", directory, 1)) return;
  if (position < 2 && !visit("..", above.value_or(kDirectory), 2)) return;
  list_names(directory, position, visit);
}

void SourceTree::list_names(Ino directory, std::uint64_t position, const VisitEntry& visit) const {
  const auto path = path_of(directory);
  if (!path) return;
  const auto names = names_of(*path, position > kFixedEntries);
  if (!names) return;
  const auto first =
      std::ranges::lower_bound(**names, position, {}, [](const auto& placed) { return placed.first; });
  for (const auto& [at, name] : std::span(first, (*names)->end())) {
    const auto ino = number_of(joined(*path, name));
    if (ino && !visit(name, *ino, at + 1)) return;
  }
  const MutexLock lock(mutex_);
  std::erase_if(listed_, [&](const auto& kept) { return kept.second == *names; });  // it has ended
}

Result<SourceFiles::Found> SourceTree::look(const Entry& entry) const {
  if (entry.is_gone) return is_stale();
  auto found = files_.find(entry.key.path);
  if (!found && found.error().errno_value == ENOENT) return is_stale();
  RETURN_IF_ERROR(found);
  const struct stat& status = found->entry.status;
  if (S_ISDIR(status.st_mode) != entry.is_directory) return is_stale();
  if (!entry.key.path.empty() && key_of(entry.key.path, found->entry) != entry.key) return is_stale();
  return found;
}

Result<SourceTree::Shown> SourceTree::attributes(Ino ino) const {
  auto known = ino == kDirectory ? Result<Entry>(Entry{.key = {}, .is_directory = true}) : entry(ino);
  RETURN_IF_ERROR(known);
  Shown shown;
  if (auto found = look(*known)) {
    shown = {.status = found->entry.status,
             .permissions = found->entry.permissions,
             .is_private_own = files_.top().is_private() && found->is_own && !found->entry.is_copy};
  } else if (known->reader && found.error().errno_value == ESTALE) {
    const int descriptor = known->reader->get();
    if (::fstat(descriptor, &shown.status) != 0) return fail_system(errno, known->key.path, "stat");
    shown.permissions = permissions_of(shown.status, descriptor);
    shown.is_private_own = files_.top().is_private();  // nothing copies it
  } else {
    return tl::unexpected(found.error());
  }
  if (!known->is_directory) note_told(ino, shown.status);
  return shown;
}

void SourceTree::note_told(Ino ino, const struct stat& status) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(ino);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  const struct timespec& now = status.st_ctim;
  const bool is_same = entry.size_bytes == status.st_size && entry.changed_at.tv_sec == now.tv_sec &&
                       entry.changed_at.tv_nsec == now.tv_nsec;
  entry.is_changed = entry.is_changed || (!is_same && entry.size_bytes >= 0);
  entry.size_bytes = status.st_size;
  entry.changed_at = now;
}

bool SourceTree::is_changed(Ino ino) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(ino);
  return found != entries_.end() && std::exchange(found->second.is_changed, false);
}

Result<std::shared_ptr<const UniqueFd>> SourceTree::reader(Ino ino) const {
  auto known = entry(ino);
  RETURN_IF_ERROR(known);
  if (known->reader) return known->reader;
  auto found = look(*known);
  RETURN_IF_ERROR(found);
  UniqueFd& file = found->entry.file;
  if (!file) return fail(ErrorCode::System, EACCES, known->key.path + ": may not be read");
  auto opened = std::make_shared<const UniqueFd>(std::move(file));
  const MutexLock lock(mutex_);
  const auto there = entries_.find(ino);
  if (there != entries_.end() && !there->second.reader && !there->second.is_gone)
    keep(ino, there->second, opened);
  return opened;
}

void SourceTree::keep(Ino ino, Entry& entry, std::shared_ptr<const UniqueFd> reader) const {
  if (readers_.size() >= kMostReaders) drop_reader(entries_.at(readers_.begin()->second));
  entry.reader = std::move(reader);
  entry.opened_at = ++uses_;
  readers_.emplace(entry.opened_at, ino);
}

void SourceTree::drop_reader(Entry& entry) const {
  readers_.erase(entry.opened_at);
  entry.reader.reset();
}

void SourceTree::note_lookup(Ino ino) const {
  if (!owns(ino)) return;
  const MutexLock lock(mutex_);
  if (const auto found = entries_.find(ino); found != entries_.end()) ++found->second.lookups;
}

void SourceTree::forget(Ino ino, std::uint64_t lookups) const {
  if (!owns(ino)) return;
  const MutexLock lock(mutex_);
  const auto found = entries_.find(ino);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  entry.lookups -= std::min(entry.lookups, lookups);
  if (entry.lookups > 0) return;
  if (entry.is_gone) {
    entries_.erase(found);
    return;
  }
  // A look-up that runs beside this call may have found the number: it stays.
  drop_reader(entry);
}

void SourceTree::lose_path(Entries::iterator entry) const {
  Entry& lost = entry->second;
  by_key_.erase(lost.key);
  readers_.erase(lost.opened_at);  // it stays open until the kernel forgets the number
  lost.is_gone = true;
  const uid_t user = requesting_user();
  if (!lost.reader || is_unlimited(user)) return;
  auto share = gone_files_.take(user);
  if (share) lost.share = std::move(*share);
  if (!share) lost.reader.reset();  // its readers get ESTALE
}

Ino SourceTree::note_made(const std::string& path, const EntryIdentity& made) const {
  const MutexLock lock(mutex_);
  return number({path, made}, false);
}

void SourceTree::note_copied(Ino ino, const EntryIdentity& copy) const {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(ino);
  if (found == entries_.end() || found->second.is_gone) return;
  Entry& entry = found->second;
  by_key_.erase(entry.key);
  drop_reader(entry);
  entry.key.identity = copy;
  // A look-up may have found the copy before.
  if (const auto other = by_key_.find(entry.key); other != by_key_.end())
    lose_path(entries_.find(other->second));
  by_key_.emplace(entry.key, ino);
}

void SourceTree::keep_open(const std::string& path) const {
  std::vector<Ino> known;
  {
    const MutexLock lock(mutex_);
    for (auto at = by_key_.lower_bound({path}); at != by_key_.end() && at->first.path == path; ++at) {
      const Entry& entry = entries_.at(at->second);
      if (entry.lookups > 0 && !entry.is_directory) known.push_back(at->second);
    }
  }
  for (const Ino ino : known) static_cast<void>(reader(ino));  // without it, reads fail with ESTALE
}

void SourceTree::note_removed(const std::string& path) const {
  const MutexLock lock(mutex_);
  for (auto at = by_key_.lower_bound({path}); at != by_key_.end() && at->first.path == path;) {
    const auto entry = entries_.find(at->second);
    ++at;
    lose_path(entry);
  }
}

void SourceTree::note_renamed(const std::string& path, const std::string& new_path) const {
  note_removed(new_path);
  const MutexLock lock(mutex_);
  std::vector<Ino> moved;
  for (const auto& [key, ino] : by_key_) {
    if (key.path == path || key.path.starts_with(path + '/')) moved.push_back(ino);
  }
  for (const Ino ino : moved) {
    Entry& entry = entries_.at(ino);
    by_key_.erase(entry.key);
    entry.key.path = new_path + entry.key.path.substr(path.size());
    by_key_.emplace(entry.key, ino);
  }
}

void SourceTree::visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const {
  std::vector<std::pair<Ino, std::string>> known;
  {
    const MutexLock lock(mutex_);
    // Longer paths first: the entries of a directory come before the directory's own.
    for (auto at = by_key_.rbegin(); at != by_key_.rend(); ++at) {
      const std::string& path = at->first.path;
      const std::size_t slash = path.rfind('/');
      const std::string directory = slash == std::string::npos ? "" : path.substr(0, slash);
      const std::string name = path.substr(slash == std::string::npos ? 0 : slash + 1);
      if (entries_.at(at->second).lookups == 0) continue;
      auto above = directory.empty() ? by_key_.end() : by_key_.lower_bound({directory});
      if (above == by_key_.end() || above->first.path != directory) known.emplace_back(kDirectory, name);
      // Several directories may have had the path, one after the other.
      for (; above != by_key_.end() && above->first.path == directory; ++above)
        known.emplace_back(above->second, name);
    }
  }
  for (const auto& [directory, name] : known) visit(directory, name);
}

}  // namespace stfs
