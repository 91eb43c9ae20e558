// Implements the tree, reading, and the checks for changes of the archive by others (filesystem.h).
#include "fs/model/filesystem.h"

#include <fmt/format.h>

#include <algorithm>

#include "fs/base/log.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

constexpr std::uint64_t kStatBlockBytes = 512;  // the unit of st_blocks, whatever st_blksize says
constexpr std::uint32_t kPreferredReadBytes = 1 << 20;
constexpr std::uint64_t kFragmentBytes = 4096;

/// Visits `.`, `..` and then the entries that entry_at returns.
template <class EntryAt>
Result<void> visit_entries(std::uint64_t position, std::size_t count, Ino directory, Ino parent,
                           const Filesystem::VisitEntry& visit, const EntryAt& entry_at) {
  for (; position < count + 2; ++position) {
    const auto [name, ino] = position == 0   ? std::pair<std::string_view, Ino>(".", directory)
                             : position == 1 ? std::pair<std::string_view, Ino>("..", parent)
                                             : entry_at(position - 2);
    if (!visit(name, ino, position + 1)) break;
  }
  return {};
}

}  // namespace

Filesystem::Filesystem(std::unique_ptr<Archive> archive, const FilesystemOptions& options)
    : Filesystem(std::make_unique<Model>(std::move(archive)), options) {}

Filesystem::Filesystem(std::unique_ptr<Model> model, const FilesystemOptions& options)
    : model_(std::move(model)),
      options_(options),
      activity_(options.activity ? options.activity : std::make_shared<Activity>()),
      inodes_(model_->tensors(), options.layout),
      unserved_(*model_, options.layout),
      shards_(model_->shards().size()),
      views_(std::make_unique<Views>(*model_, inodes_, options.layout, view_source(), *activity_)),
      transactions_(*model_,
                    [this](std::uint32_t tensor) -> Result<TransactionDirectory::TensorVersion> {
                      const std::uint64_t generation = state_of(tensor).generation;
                      auto sum = checksum(tensor);
                      if (!sum) return pass_on(std::move(sum));
                      return TransactionDirectory::TensorVersion{generation, std::move(*sum)};
                    }),
      tensor_locks_(std::clamp<std::size_t>(model_->tensors().size(), 1, kMostTensorLocks)),
      may_be_cached_(model_->tensors().size()),
      may_be_known_(model_->tensors().size()) {
  if (model_->access() == Access::ReadOnly) options_.is_read_only = true;
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
    if (!model_->shards()[shard].archive) continue;
    const std::int64_t mtime_ns = model_->shards()[shard].archive->identity().mtime_ns;
    // Generations begin with the time of the archive's last change, so that they also grow from mount to
    // mount.
    shards_[shard].common = {
        .generation = std::max(options.least_generation, static_cast<std::uint64_t>(mtime_ns)),
        .mtime = timespec_of(mtime_ns)};
    static_cast<void>(note_permissions(static_cast<std::uint32_t>(shard)));
  }
}

bool Filesystem::exists(Ino ino) const {
  if (Views::owns(ino)) return views_->exists(ino);
  return TransactionDirectory::owns(ino) ? transactions_.exists(ino) : inodes_.exists(ino);
}

bool Filesystem::is_directory(Ino ino) const {
  if (Views::owns(ino)) return Views::is_directory(ino);
  return TransactionDirectory::owns(ino) ? transactions_.is_directory(ino) : inodes_.is_directory(ino);
}

std::uint32_t Filesystem::tensor_of(Ino ino) const {
  if (Views::owns(ino)) return views_->tensor(ino).value_or(0);
  return TransactionDirectory::owns(ino) ? transactions_.tensor(ino) : inodes_.tensor(ino);
}

Result<struct stat> Filesystem::lookup(Ino parent, std::string_view name) const {
  auto found = lookup_unrefused(parent, name);
  if (!is_refused_ || !found) return found;
  // Directories and views that describe the model stay visible; files that show tensors fail.
  const Ino ino = found->st_ino;
  if (is_directory(ino) || (Views::owns(ino) && !views_->tensor(ino) && ino != Views::kArchive)) return found;
  if (Views::is_counted(ino)) views_->forget(ino, 1);
  const std::scoped_lock lock(state_mutex_);
  return fail(ErrorCode::ArchiveChanged, EIO, why_refused_);
}

Result<struct stat> Filesystem::lookup_unrefused(Ino parent, std::string_view name) const {
  if (!exists(parent) || !is_directory(parent)) return no_such_inode(parent);
  // The views' directory is reachable by name but not listed: a copy of the tree contains each tensor once.
  if (parent == kRootIno && name == kViewsDirectory) return stat_of(TransactionDirectory::kViews);
  if (parent == TransactionDirectory::kViews || Views::owns(parent)) {
    const auto view = views_->find(Views::owns(parent) ? parent : Views::kEntriesOf, name);
    if (view) return attributes(*view);
    if (Views::owns(parent)) {
      const auto flat = Views::flat_name_in(parent, name);
      if (const auto* unserved = flat ? unserved_.find_flat(*flat) : nullptr) {
        return fail(ErrorCode::ArchiveChanged, EIO, model_->why_unserved(*unserved));
      }
      return tl::unexpected(view.error());
    }
  }
  const auto ino =
      TransactionDirectory::owns(parent) ? transactions_.find(parent, name) : inodes_.find(parent, name);
  if (!ino && !TransactionDirectory::owns(parent)) {
    if (const auto* unserved = unserved_.find(inodes_, parent, name))
      return fail(ErrorCode::ArchiveChanged, EIO, model_->why_unserved(*unserved));
  }
  if (!ino) return fail(ErrorCode::NotFound, ENOENT, "no such tensor");
  return stat_of(*ino);
}

Result<struct stat> Filesystem::attributes(Ino ino) const {
  if (!exists(ino)) return no_such_inode(ino);
  if (Views::owns(ino)) return stat_of_view(ino);
  return stat_of(ino);
}

struct stat Filesystem::stat_of(Ino ino) const {
  struct stat st {};
  st.st_ino = ino;
  st.st_blksize = kPreferredReadBytes;
  if (is_directory(ino)) {
    constexpr mode_t kWrite = 0222;
    constexpr unsigned kReadToSearch =
        2;  // r is 4, x is 1: the right to read a tensor gives its directory's x
    Permissions shown = permissions_of_any();
    // Entries are made and moved only below `.safetensors`.
    if (!TransactionDirectory::owns(ino)) shown.mode &= ~kWrite;
    shown.mode |= (shown.mode & 0444) >> kReadToSearch;
    if (options_.is_shared && TransactionDirectory::owns(ino)) shown = transactions_.restricted(ino, shown);
    st.st_mode = S_IFDIR | (shown.mode & ~options_.umask);
    st.st_uid = shown.uid;
    st.st_gid = shown.gid;
    st.st_nlink = 2 + (TransactionDirectory::owns(ino) ? 0 : inodes_.subdirectories(ino));
    st.st_mtim = st.st_ctim = st.st_atim = timespec_of(model_->front().opened_status().identity.mtime_ns);
    return st;
  }
  const std::uint32_t tensor = tensor_of(ino);
  if (!TransactionDirectory::owns(ino)) may_be_known_[tensor] = true;
  const auto content = shared_content(ino);
  const std::uint64_t size_bytes =
      content ? content->shown_size_bytes() : model_->tensors()[tensor].data.size_bytes;
  const Permissions shown = permissions_of_tensor(tensor);
  st.st_mode = S_IFREG | (shown.mode & ~options_.umask);
  st.st_uid = shown.uid;
  st.st_gid = shown.gid;
  st.st_nlink = 1;
  st.st_size = static_cast<off_t>(size_bytes);
  st.st_blocks = static_cast<blkcnt_t>((size_bytes + kStatBlockBytes - 1) / kStatBlockBytes);
  st.st_mtim = st.st_ctim = st.st_atim = state_of(tensor).mtime;
  return st;
}

Result<void> Filesystem::read_directory(Ino directory, std::uint64_t position,
                                        const VisitEntry& visit) const {
  if (!exists(directory)) return no_such_inode(directory);
  if (!is_directory(directory)) return fail(ErrorCode::InvalidArgument, ENOTDIR, "not a directory");
  if (Views::owns(directory)) return read_view_directory(directory, position, visit);
  if (TransactionDirectory::owns(directory)) {
    auto entries = transactions_.list(directory);
    if (directory == TransactionDirectory::kViews) {
      for (const Views::Entry& view : Views::kEntries) entries.emplace_back(view.name, view.ino);
    }
    const Ino parent = transactions_.parent(directory);
    return visit_entries(position, entries.size(), directory, parent, visit,
                         [&](std::size_t at) { return std::pair<std::string_view, Ino>(entries[at]); });
  }
  const auto children = inodes_.children(directory);
  return visit_entries(
      position, children.size(), directory, inodes_.parent(directory), visit, [&](std::size_t at) {
        return std::pair<std::string_view, Ino>(inodes_.file_name(children[at]), children[at]);
      });
}

struct statvfs Filesystem::statistics() const {
  // No byte can be added to a model, so no space is free.
  struct statvfs st {};
  st.f_bsize = kFragmentBytes;
  st.f_frsize = kFragmentBytes;
  for (const Shard& shard : model_->shards()) {
    if (!shard.archive) continue;
    const std::uint64_t size_bytes = shard.archive->opened_status().identity.size_bytes;
    st.f_blocks += (size_bytes + kFragmentBytes - 1) / kFragmentBytes;
  }
  st.f_files = inodes_.size();
  st.f_namemax = 255;
  if (options_.is_read_only) st.f_flag |= ST_RDONLY;
  return st;
}

Result<Bytes> Filesystem::read(Ino ino, std::uint64_t offset, std::size_t size_bytes) const {
  if (!exists(ino)) return no_such_inode(ino);
  if (is_directory(ino)) return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
  if (Views::owns(ino)) return views_->read(ino, offset, size_bytes);
  const std::uint32_t tensor = tensor_of(ino);
  if (TransactionDirectory::owns(ino)) transactions_.note_read(ino);
  may_be_cached_[tensor] = true;
  if (const auto content = shared_content(ino)) return read_pending(*content, offset, size_bytes);
  const std::uint64_t end = model_->tensors()[tensor].data.size_bytes;
  if (offset >= end) return Bytes();
  return read_archive(tensor, {offset, std::min<std::uint64_t>(size_bytes, end - offset)});
}

Result<const Archive*> Filesystem::unbroken_archive_of(std::uint32_t tensor) const {
  const TensorPlace place = model_->place(tensor);
  if (!shards_[place.shard].is_broken) return &model_->archive(place.shard);
  return fail(ErrorCode::ArchiveChanged, EIO,
              label_of(tensor) + ": the archive's header was changed underneath");
}

Result<Bytes> Filesystem::read_archive(std::uint32_t tensor, ByteRange part) const {
  const auto archive = unbroken_archive_of(tensor);
  if (!archive) return tl::unexpected(archive.error());
  const std::uint64_t offset = range_of(tensor).offset + part.offset;
  std::shared_lock lock(lock_of(model_->place(tensor)));
  auto mapped = (*archive)->map({offset, part.size_bytes});
  if (!mapped) return pass_on(std::move(mapped));
  if (!mapped->empty()) return Bytes(*mapped, std::move(lock));
  std::vector<std::byte> bytes = Bytes::buffer(part.size_bytes);
  if (auto read = (*archive)->read_through(bytes, offset); !read) return pass_on(std::move(read));
  return Bytes(std::move(bytes));
}

Result<void> Filesystem::copy_archive(std::uint32_t tensor, std::uint64_t offset,
                                      std::span<std::byte> to) const {
  const auto archive = unbroken_archive_of(tensor);
  if (!archive) return tl::unexpected(archive.error());
  const std::shared_lock lock(lock_of(model_->place(tensor)));
  return (*archive)->read_through(to, range_of(tensor).offset + offset);
}

Result<Bytes> Filesystem::read_pending(PendingContent& content, std::uint64_t offset,
                                       std::size_t size_bytes) const {
  const ContentLock::Reading reading(content.mutex);
  const std::uint64_t end = content.size_bytes();
  if (offset >= end) return Bytes();
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::min<std::uint64_t>(size_bytes, end - offset)));
  const auto read_base = [&](std::span<std::byte> to, std::uint64_t at) {
    return copy_archive(content.tensor(), at, to);
  };
  const auto read = content.staged() != nullptr ? content.staged()->read(bytes, offset, read_base)
                                                : read_base(bytes, offset);
  if (!read) return tl::unexpected(read.error());
  return Bytes(std::move(bytes));
}

Filesystem::Change Filesystem::check_for_change(std::uint32_t shard) {
  if (!model_->shards()[shard].archive) return {};
  const bool has_new_permissions = note_permissions(shard);
  if (has_new_permissions) forget_permissions(shard);
  const std::scoped_lock commit_lock(commit_mutex_);
  if (has_new_permissions) retire_journal(shard);
  Change change = note_foreign_change(shard);
  change.has_new_permissions = has_new_permissions;
  for (const Stale& view : stale_views(change.stale)) forget_(view);
  return change;
}

Filesystem::Change Filesystem::note_foreign_change(std::uint32_t shard) {
  Archive& archive = model_->archive(shard);
  ShardState& known = shards_[shard];
  const auto change = archive.check_for_change();
  const std::string path = archive.path().string();
  if (!change) {
    // Logged once: the check is repeated each second until the store works again.
    if (!known.is_unknown.exchange(true)) log::error("{}", change.error().message);
    return {.stale = {}, .is_unknown = true};
  }
  known.is_unknown = false;
  if (change->is_gone && !known.is_gone.exchange(true)) {
    log::warning("{}: deleted; this mount goes on with its content, and nothing can be written to it", path);
  }
  Change found{.stale = {}, .is_outdated = (change->is_replaced && !change->is_gone) || known.is_broken};
  if (!change->is_touched) return found;
  if (change->is_broken && !known.is_broken.exchange(true)) {
    is_any_broken_ = true;
    log::warning("{}: somebody else has changed the archive's header: what is open of it gives EIO", path);
  }
  found.is_outdated = found.is_outdated || known.is_broken;
  found.stale = note_touched(shard);
  return found;
}

Stale Filesystem::note_touched(std::uint32_t shard) {
  Archive& archive = model_->archive(shard);
  ShardState& known = shards_[shard];
  if (!known.is_broken) log::info("{}: changed by somebody else; caches dropped", archive.path().string());
  if (auto adopted = archive.adopt_identity(); !adopted) log::error("{}", adopted.error().message);
  const std::scoped_lock state_lock(state_mutex_);
  const std::int64_t mtime_ns = archive.identity().mtime_ns;
  std::uint64_t newest = known.common.generation;
  std::erase_if(changed_states_, [&](const auto& changed) {
    if (model_->place(changed.first).shard != shard) return false;
    newest = std::max(newest, changed.second.generation);
    return true;
  });
  known.common = {.generation = std::max(newest + 1, static_cast<std::uint64_t>(mtime_ns)),
                  .mtime = timespec_of(mtime_ns)};
  ++changes_;
  return stale_shard(shard, Stale::What::Content);
}

Stale Filesystem::stale_shard(std::uint32_t shard, Stale::What what) const {
  return {InodeTable::ino_of_tensor(model_->first_tensor(shard)),
          InodeTable::ino_of_tensor(model_->first_tensor(shard + 1)) - 1, what};
}

void Filesystem::note_told(Ino ino) const {
  if (Views::owns(ino)) return views_->note_told(ino);
  if (inodes_.exists(ino) && !inodes_.is_directory(ino)) may_be_known_[inodes_.tensor(ino)] = true;
}

void Filesystem::visit_cached(const Stale& stale, const VisitCached& visit) const {
  const Ino first = InodeTable::ino_of_tensor(0);
  const auto take = [](std::atomic<bool>& mark) { return mark && mark.exchange(false); };
  for (Ino ino = stale.first; ino <= stale.last; ++ino) {
    const std::uint64_t tensor = ino - first;
    if (ino < first || tensor >= may_be_known_.size()) {
      visit(ino, stale.what);
      continue;
    }
    const bool is_cached = stale.what == Stale::What::Content && take(may_be_cached_[tensor]);
    const bool is_known = take(may_be_known_[tensor]);
    if (is_cached || is_known) visit(ino, is_cached ? Stale::What::Content : Stale::What::Attributes);
  }
}

void Filesystem::refuse(std::string why) {
  const std::scoped_lock lock(state_mutex_);
  why_refused_ = std::move(why);
  is_refused_ = true;
}

void Filesystem::visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const {
  const auto [first, end] = inodes_.directories();
  for (Ino directory = end; directory-- > first;) {
    for (const Ino child : inodes_.children(directory)) visit(directory, inodes_.file_name(child));
  }
  views_->visit_known(visit);
  for (const Views::Entry& view : Views::kEntries) visit(TransactionDirectory::kViews, view.name);
}

std::uint64_t Filesystem::newest_generation() const {
  const std::scoped_lock lock(state_mutex_);
  std::uint64_t newest = 0;
  for (const ShardState& shard : shards_) newest = std::max(newest, shard.common.generation);
  for (const auto& [tensor, state] : changed_states_) newest = std::max(newest, state.generation);
  return newest;
}

Filesystem::State Filesystem::state_of(std::uint32_t tensor) const {
  const std::scoped_lock lock(state_mutex_);
  const auto changed = changed_states_.find(tensor);
  return changed == changed_states_.end() ? shard_of(tensor).common : changed->second;
}

struct timespec Filesystem::timespec_of(std::int64_t ns) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  return {.tv_sec = ns / kSecond, .tv_nsec = ns % kSecond};
}

void Filesystem::set_mtime(Ino ino, struct timespec mtime) {
  if (!exists(ino) || is_directory(ino) || is_view(ino)) return;
  const std::uint32_t tensor = tensor_of(ino);
  const auto staged = TransactionDirectory::owns(ino) ? transactions_.content(ino) : nullptr;
  const std::scoped_lock lock(state_mutex_);
  const auto keep = [&](PendingContent& content) {
    content.mtime = mtime;
    content.keeps_mtime = true;
  };
  if (staged) return keep(*staged);
  for (const auto& [file, owned] : open_files_) {
    if (file->ino == ino) keep(*file->content);
  }
  if (TransactionDirectory::owns(ino)) return;
  changed_states_.try_emplace(tensor, shard_of(tensor).common).first->second.mtime = mtime;
}

ByteRange Filesystem::range_of(std::uint32_t tensor) const {
  return model_->file_range(tensor);
}

std::string Filesystem::label_of(std::uint32_t tensor) const {
  return fmt::format("{}: tensor \"{}\"", model_->archive_of(tensor).path().string(),
                     model_->tensors()[tensor].name);
}

}  // namespace stfs
