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

}  // namespace

Filesystem::Filesystem(std::unique_ptr<Archive> archive, const FilesystemOptions& options)
    : Filesystem(std::make_unique<Model>(std::move(archive)), options) {}

Filesystem::Filesystem(std::unique_ptr<Model> model, const FilesystemOptions& options)
    : model_(std::move(model)),
      options_(options),
      activity_(options.activity ? options.activity : std::make_shared<Activity>()),
      tree_(model_, options.layout),
      looks_(model_->shards().size()),
      states_(model_, options.least_generation),
      permissions_(model_, {.is_read_only = options.is_read_only || model_->access() == Access::ReadOnly,
                            .uid = options.uid,
                            .gid = options.gid}),
      reader_(model_, states_, options.fails_on_change),
      views_(model_, tree_, reader_.view_source(), *activity_),
      pretrained_(model_->path(), model_->delta_paths(), [this] { return views_.present(Views::kArchive); }),
      transactions_(model_, tree_,
                    [this](TensorId tensor) -> Result<TensorVersion> {
                      const std::uint64_t generation = states_.of(tensor).generation;
                      auto sum = reader_.checksum(tensor);
                      if (!sum) return pass_on(std::move(sum));
                      return TensorVersion{generation, std::move(*sum)};
                    }),
      hidden_(views_, pretrained_, transactions_),
      may_be_cached_(model_->ids().end()),
      may_be_known_(model_->ids().end()),
      lookups_(model_->ids().end()),
      committers_(*model_, options.commit),
      next_id_(model_->ids().end()) {
  if (model_->access() == Access::ReadOnly) options_.is_read_only = true;
}

Directory& Filesystem::directory_of(Ino ino) const {
  if (ino == kHiddenIno) return hidden_;
  if (TransactionDirectory::owns(ino)) return transactions_;
  if (Views::owns(ino)) return views_;
  if (PretrainedDirectory::owns(ino)) return pretrained_;
  return tree_;
}

Node Filesystem::resolve(Ino of_mount) const {
  const Ino ino = InodeSpace::local(of_mount);
  const Node node = directory_of(ino).node(ino);
  if (node.exists()) return node;
  const auto draft = drafts_.find(ino);
  if (!draft) return node;
  return {.ino = ino, .kind = Node::Kind::Draft, .tensor = draft->content->tensor()};
}

Result<struct stat> Filesystem::lookup(Ino parent, std::string_view name) const {
  const Node directory = resolve(parent);
  if (!directory.is_directory()) return no_such_inode(parent);
  auto entry = directory_of(directory.ino).find(directory.ino, name);
  if (!entry) {
    const auto draft = drafts_.find(directory.ino, name);
    if (!draft) return pass_on(std::move(entry));
    entry = draft->ino;
  }
  const Node found = resolve(*entry);
  // In a refused model, directories and views that describe the model stay visible; files that show tensors
  // fail.
  const bool shows_tensors = !found.is_directory() && (!found.is_view() || Views::is_archive(found.ino) ||
                                                       views_.tensor(found.ino).has_value());
  if (!is_refused_ || !shows_tensors) return stat_of(found);
  if (Views::is_counted(found.ino)) views_.forget(found.ino, 1);
  const std::scoped_lock lock(refusal_mutex_);
  return fail(ErrorCode::ArchiveChanged, EIO, why_refused_);
}

std::optional<TensorId> Filesystem::tensor_behind(Ino of_mount) const {
  const Ino ino = InodeSpace::local(of_mount);
  if (TransactionDirectory::owns(ino)) return transactions_.tensor_of(ino);
  if (Views::owns(ino)) return Views::is_counted(ino) ? std::nullopt : views_.tensor(ino);
  if (InodeTable::is_directory(ino) || ino == kHiddenIno) return std::nullopt;
  return InodeTable::tensor(ino);
}

void Filesystem::note_lookup(Ino ino) const {
  views_.note_lookup(InodeSpace::local(ino));
  if (const auto tensor = tensor_behind(ino)) ++lookups_[number_of(*tensor)];
}

void Filesystem::forget(Ino ino, std::uint64_t lookups) {
  bool may_free = views_.forget(InodeSpace::local(ino), lookups);
  if (const auto tensor = tensor_behind(ino)) {
    const auto number = static_cast<std::uint32_t>(lookups);
    may_free = lookups_[number_of(*tensor)].fetch_sub(number) == number;
  }
  if (may_free && !model_->removed().empty()) wake_janitor_();
}

Result<struct stat> Filesystem::attributes(Ino ino) const {
  const Node node = resolve(ino);
  return node.exists() ? stat_of(node) : no_such_inode(ino);
}

mode_t Filesystem::file_type(Ino ino) const {
  const Node node = resolve(ino);
  if (node.is_directory()) return S_IFDIR;
  return node.is_link() ? S_IFLNK : S_IFREG;
}

Result<struct stat> Filesystem::stat_of(const Node& node) const {
  if (PretrainedDirectory::owns(node.ino)) return stat_of_pretrained(node);
  if (node.is_view()) return stat_of_view(node);
  if (node.kind == Node::Kind::StagedNpy) return stat_of_staged_npy(node);
  if (node.kind == Node::Kind::Draft) {
    const auto content = shared_content(node);
    return content ? Result<struct stat>(stat_of_draft(node, *content)) : no_such_inode(node.ino);
  }
  return node.is_directory() ? stat_of_directory(node) : stat_of_tensor(node);
}

struct stat Filesystem::stat_of_directory(const Node& node) const {
  constexpr mode_t kWrite = 0222;
  // r is 4, x is 1: the right to read a tensor gives its directory's x.
  constexpr unsigned kReadToSearch = 2;
  Permissions shown = permissions_.of_any();
  // An edit may change every shard, and so may a checkpoint that is made in `.safetensors`.
  if (node.kind == Node::Kind::Directory || node.ino == kHiddenIno)
    shown.mode &= options_.allows_edits ? permissions_.of_all().mode | ~kWrite : ~kWrite;
  shown.mode |= (shown.mode & 0444) >> kReadToSearch;
  if (options_.is_shared && node.is_staged()) shown = transactions_.restricted(node.ino, shown);
  struct stat st {};
  st.st_ino = space_.in_mount(node.ino);
  st.st_blksize = kPreferredReadBytes;
  st.st_mode = S_IFDIR | (shown.mode & ~options_.umask);
  st.st_uid = shown.uid;
  st.st_gid = shown.gid;
  st.st_nlink = 2 + (node.is_staged() ? 0 : tree_.table().subdirectories(node.ino));
  st.st_mtim = st.st_ctim = st.st_atim = timespec_of(model_->front_version().status.identity.mtime_ns);
  return st;
}

struct stat Filesystem::stat_of_tensor(const Node& node) const {
  if (!node.is_staged()) may_be_known_[number_of(node.tensor)] = true;
  const auto content = shared_content(node);
  const std::uint64_t size_bytes =
      content ? content->shown_size_bytes() : model_->tensor(node.tensor).data.size_bytes;
  const Permissions shown = permissions_.of_shard(model_->place(node.tensor).shard);
  struct stat st {};
  st.st_ino = space_.in_mount(node.ino);
  st.st_blksize = kPreferredReadBytes;
  st.st_mode = S_IFREG | (shown.mode & ~options_.umask);
  st.st_uid = shown.uid;
  st.st_gid = shown.gid;
  st.st_nlink = model_->ids().position(node.tensor) ? 1 : 0;
  st.st_size = static_cast<off_t>(size_bytes);
  st.st_blocks = static_cast<blkcnt_t>((size_bytes + kStatBlockBytes - 1) / kStatBlockBytes);
  st.st_mtim = st.st_ctim = st.st_atim = states_.of(node.tensor).mtime;
  return st;
}

Result<void> Filesystem::read_directory(Ino directory, std::uint64_t position,
                                        const VisitEntry& visit) const {
  const Node node = resolve(directory);
  if (!node.exists()) return no_such_inode(directory);
  if (!node.is_directory()) return fail(ErrorCode::InvalidArgument, ENOTDIR, "not a directory");
  const auto in_mount = [&](std::string_view name, Ino ino, std::uint64_t next) {
    const bool leads_out = name == ".." && node.ino == kRootIno;
    return visit(name, leads_out ? kRootIno : space_.in_mount(ino), next);
  };
  directory_of(node.ino).list(node.ino, position, in_mount);
  return {};
}

struct statvfs Filesystem::statistics() const {
  // Free is what deleted tensors have left in the archives: new tensors take it first
  // (core/commit/archive_edit.h).
  struct statvfs st {};
  std::uint64_t free_bytes = 0;
  st.f_bsize = kFragmentBytes;
  st.f_frsize = kFragmentBytes;
  const Model& model = *model_;
  for (const Shard& shard : model.shards()) {
    if (!shard.archive) continue;
    const std::uint64_t size_bytes = shard.version->status.identity.size_bytes;
    st.f_blocks += (size_bytes + kFragmentBytes - 1) / kFragmentBytes;
    for (const ByteRange filler : shard.version->header->content.fillers) free_bytes += filler.size_bytes;
  }
  st.f_bfree = free_bytes / kFragmentBytes;
  st.f_bavail = options_.is_read_only ? 0 : st.f_bfree;
  st.f_files = tree_.table().size();
  st.f_namemax = 255;
  if (options_.is_read_only) st.f_flag |= ST_RDONLY;
  return st;
}

Result<Bytes> Filesystem::read(Ino ino, std::uint64_t offset, std::size_t size_bytes) const {
  const Node node = resolve(ino);
  if (!node.exists()) return no_such_inode(ino);
  if (node.is_directory()) return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
  if (node.is_link()) return fail(ErrorCode::InvalidArgument, EINVAL, "is a symbolic link");
  if (node.is_view()) return views_.read(node.ino, offset, size_bytes);
  if (node.kind == Node::Kind::StagedNpy) return read_staged_npy(node, offset, size_bytes);
  if (node.kind == Node::Kind::Draft) {
    const auto content = shared_content(node);
    return content ? read_pending(*content, offset, size_bytes) : no_such_inode(ino);
  }
  if (node.is_staged()) transactions_.note_read(node.ino);
  may_be_cached_[number_of(node.tensor)] = true;
  if (const auto content = shared_content(node)) return read_pending(*content, offset, size_bytes);
  const std::uint64_t end = model_->tensor(node.tensor).data.size_bytes;
  if (offset >= end) return Bytes();
  return reader_.read(node.tensor, {offset, std::min<std::uint64_t>(size_bytes, end - offset)});
}

Result<Bytes> Filesystem::read_pending(PendingContent& content, std::uint64_t offset,
                                       std::size_t size_bytes) const {
  const ContentLock::Reading reading(content.mutex);
  const std::uint64_t end = content.size_bytes();
  if (offset >= end) return Bytes();
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::min<std::uint64_t>(size_bytes, end - offset)));
  const auto read_base = [&](std::span<std::byte> to, std::uint64_t at) {
    return reader_.copy(content.tensor(), at, to);
  };
  const auto read = content.read(bytes, offset, read_base);
  if (!read) return tl::unexpected(read.error());
  return Bytes(std::move(bytes));
}

Filesystem::Change Filesystem::check_for_change(std::uint32_t shard) {
  if (!model_->shards()[shard].archive) return {};
  const auto looked = permissions_.look(shard);
  if (!looked && !looks_[shard].is_unknown) log::error("{}", looked.error().message);
  const bool has_new_permissions = looked.value_or(false);
  if (has_new_permissions) forget_permissions(shard);
  Committer& committer = committers_.of(shard);
  const std::scoped_lock turn(committer.turn);
  if (has_new_permissions) committer.retire_journal();
  Change change = note_foreign_change(shard);
  change.has_new_permissions = has_new_permissions;
  for (const Stale& view : stale_views(change.stale)) forget_(view);
  return change;
}

void Filesystem::forget_permissions(std::uint32_t shard) const {
  ++changes_;
  log::info("{}: mode or owner changed", model_->reader(shard).path().string());
  forget_(stale_shard(shard, Stale::What::Attributes));
  if (const auto tensors = ids_of_shard(shard)) {
    for (const Stale& view : views_.told(tensors->first, tensors->second))
      forget_(stale(view.first, view.last, view.what));
  }
  forget_(stale(kRootIno, Stale::What::Attributes));
  forget_(stale(Views::kNpy, Views::kFloat32, Stale::What::Attributes));
  for (const Ino entry : {Views::kHeaderJson, Views::kMetadataJson, Views::kArchive})
    forget_(stale(views_.present(entry), Stale::What::Attributes));
  forget_(stale(kHiddenIno, TransactionDirectory::kCommitted, Stale::What::Attributes));
  const InodeTable& table = tree_.table();
  for (std::size_t at = 0; at < table.directory_count(); ++at)
    forget_(stale(table.directory(at), Stale::What::Attributes));
}

Filesystem::Change Filesystem::note_foreign_change(std::uint32_t shard) {
  ArchiveReader& archive = model_->reader(shard);
  Look& known = looks_[shard];
  const auto change = archive.check_for_change();
  const std::string path = archive.path().string();
  const auto unknown = [&](const Error& why) {
    // Logged once: the check is repeated each second until the store works again.
    if (!known.is_unknown.exchange(true)) log::error("{}", why.message);
    return Change{.stale = {}, .is_unknown = true};
  };
  if (!change) return unknown(change.error());
  if (change->is_gone && !known.is_gone.exchange(true)) {
    log::warning("{}: deleted; this mount still shows its content, and refuses writes", path);
  }
  if (change->is_touched && options_.fails_on_change) {
    if (reader_.note_changed(shard)) log::info("{}: changed by another program", path);
    return {.stale = {}, .is_outdated = true};
  }
  Change found{.stale = {},
               .is_outdated = (change->is_replaced && !change->is_gone) || reader_.is_broken(shard)};
  // Until the change is adopted, reads may still come from journals that others have finished.
  const auto adopted = change->is_touched ? archive.adopt_identity() : Result<void>();
  if (!adopted) return unknown(adopted.error());
  known.is_unknown = false;
  if (!change->is_touched) return found;
  if (change->is_broken && reader_.note_broken(shard)) {
    log::warning("{}: another program has changed the archive's header: its open files give EIO", path);
  }
  found.is_outdated = found.is_outdated || reader_.is_broken(shard);
  found.stale = note_touched(shard);
  // A delta fits only the bytes that it was made for. Reopening the model checks them.
  found.is_outdated = found.is_outdated || model_->is_of_base(shard);
  return found;
}

Stale Filesystem::note_touched(std::uint32_t shard) {
  const ArchiveReader& archive = model_->reader(shard);
  if (!reader_.is_broken(shard))
    log::info("{}: changed by another program; caches dropped", archive.path().string());
  looks_[shard].is_touched = true;
  states_.note_foreign_change(shard, archive.identity().mtime_ns);
  ++changes_;
  return stale_shard(shard, Stale::What::Content);
}

std::optional<std::pair<TensorId, TensorId>> Filesystem::ids_of_shard(std::uint32_t shard) const {
  const Model& model = *model_;
  const std::uint32_t begin = model.first_tensor(shard);
  const std::uint32_t end = model.first_tensor(shard + 1);
  if (begin == end) return std::nullopt;
  TensorId first = model.ids().of(begin);
  TensorId last = first;
  for (std::uint32_t position = begin; position < end; ++position) {
    first = std::min(first, model.ids().of(position));
    last = std::max(last, model.ids().of(position));
  }
  return std::pair(first, last);
}

Stale Filesystem::stale_shard(std::uint32_t shard, Stale::What what) const {
  const auto tensors = ids_of_shard(shard);
  if (!tensors) return {};
  return stale(InodeTable::ino_of_tensor(tensors->first), InodeTable::ino_of_tensor(tensors->second), what);
}

void Filesystem::note_told(Ino ino) const {
  const Node node = resolve(ino);
  if (node.is_view()) views_.note_told(node.ino);
  if (node.kind == Node::Kind::Tensor) may_be_known_[number_of(node.tensor)] = true;
}

void Filesystem::visit_cached(const Stale& stale, const VisitCached& visit) const {
  const Ino first = InodeTable::ino_of_tensor(TensorId{});
  const auto take = [](std::atomic<bool>& mark) { return mark && mark.exchange(false); };
  const Ino last = InodeSpace::local(stale.last);
  for (Ino ino = InodeSpace::local(stale.first); ino <= last; ++ino) {
    const std::uint64_t tensor = ino - first;
    if (ino < first || tensor >= may_be_known_.size()) {
      visit(space_.in_mount(ino), stale.what);
      continue;
    }
    const bool is_cached = stale.what == Stale::What::Content && take(may_be_cached_[tensor]);
    const bool is_known = take(may_be_known_[tensor]);
    if (is_cached || is_known)
      visit(space_.in_mount(ino), is_cached ? Stale::What::Content : Stale::What::Attributes);
  }
}

void Filesystem::refuse(std::string why) {
  for (std::uint32_t shard = 0; shard < looks_.size(); ++shard) {
    if (looks_[shard].is_touched && model_->is_of_base(shard)) reader_.note_broken(shard);
  }
  const std::scoped_lock lock(refusal_mutex_);
  why_refused_ = std::move(why);
  is_refused_ = true;
}

void Filesystem::visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const {
  const InodeTable& table = tree_.table();
  for (std::size_t left = table.directory_count(); left-- > 0;) {
    const Ino directory = table.directory(left);
    for (std::size_t at = 0; at < table.child_count(directory); ++at)
      visit(space_.in_mount(directory), table.file_name(table.child(directory, at)));
  }
  views_.visit_known([&](Ino directory, std::string_view name) { visit(space_.in_mount(directory), name); });
  pretrained_.visit_known(
      [&](Ino directory, std::string_view name) { visit(space_.in_mount(directory), name); });
  visit(space_.in_mount(kHiddenIno), PretrainedDirectory::kEntry.name);
  for (const FixedEntry& view : Views::kEntries) visit(space_.in_mount(kHiddenIno), view.name);
}

void Filesystem::set_mtime(Ino ino, struct timespec mtime) {
  const Node node = resolve(ino);
  if (!node.exists() || node.is_directory() || node.is_other_form()) return;
  if (node.kind == Node::Kind::Draft) {
    const auto content = shared_content(node);
    NewTensor* const made = content ? content->made()->tensor() : nullptr;
    if (made != nullptr) made->set_mtime(ns_of(mtime));
    return;
  }
  const auto staged = node.is_staged() ? transactions_.content(node.ino) : nullptr;
  if (staged) return open_files_.keep_mtime(*staged, mtime);
  open_files_.keep_mtime(node.ino, mtime);
  if (!node.is_staged()) states_.set_mtime(node.tensor, mtime);
}

}  // namespace stfs
