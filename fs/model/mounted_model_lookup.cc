#include "core/base/mutex.h"
#include "fs/model/mounted_model.h"

namespace stfs {
namespace {

constexpr std::uint64_t kFragmentBytes = 4096;

}  // namespace

Result<struct stat> MountedModel::lookup(Ino parent, std::string_view name) const {
  auto ino = find(node_of(parent), name);
  RETURN_IF_ERROR(ino);
  const Node found = node_of(views_.note_found(*ino));
  auto shown = status_of_found(found);
  if (!shown) views_.forget(found.ino, 1);
  return shown;
}

Result<Ino> MountedModel::find(const Node& from, std::string_view name) const {
  if (name == kSameFile) {
    const bool is_kept = from.exists() && from.kind != Node::Kind::Draft && !Views::is_counted(from.ino);
    return is_kept ? Result<Ino>(from.ino) : no_such_inode(from.ino);
  }
  if (!from.is_directory()) return no_such_inode(from.ino);
  auto entry = directory_of(from.ino).find(from.ino, name);
  if (entry) return entry;
  const auto draft = find_draft(from.ino, name);
  return draft ? Result<Ino>(draft->ino) : pass_on(std::move(entry));
}

Result<struct stat> MountedModel::status_of_found(const Node& found) const {
  // In a refused model, directories and views that describe the model stay visible; files that show tensors
  // fail.
  const bool shows_tensors =
      !found.is_directory() && !found.is_of_source() &&
      (!found.is_view() || Views::is_archive(found.ino) || views_.tensor(found.ino).has_value());
  if (!is_refused_ || !shows_tensors) return status_of(found);
  const MutexLock lock(refusal_mutex_);
  return fail(ErrorCode::ArchiveChanged, EIO, why_refused_);
}

std::optional<TensorId> MountedModel::tensor_behind(Ino of_mount) const {
  const Ino ino = InodeSpace::local(of_mount);
  if (TransactionDirectory::owns(ino)) return transactions_.tensor_of(ino);
  if (Views::owns(ino)) return Views::is_counted(ino) ? std::nullopt : views_.tensor(ino);
  return InodeTable::may_be_tensor(ino) ? std::optional(InodeTable::tensor(ino)) : std::nullopt;
}

void MountedModel::note_lookup(Ino ino) const {
  pretrained_.note_lookup(InodeSpace::local(ino));
  if (const auto tensor = tensor_behind(ino)) ++lookups_[number_of(*tensor)];
}

void MountedModel::forget(Ino ino, std::uint64_t lookups) {
  pretrained_.forget(InodeSpace::local(ino), lookups);
  bool may_free = views_.forget(InodeSpace::local(ino), lookups);
  if (const auto tensor = tensor_behind(ino)) {
    const auto number = static_cast<std::uint32_t>(lookups);
    may_free = lookups_[number_of(*tensor)].fetch_sub(number) == number;
    if (may_free) let_go_of_draft(InodeSpace::local(ino));
  }
  if (may_free && !model().removed().empty()) wake_janitor_();
}

mode_t MountedModel::file_type(Ino ino) const {
  const Node node = node_of(ino);
  if (node.is_directory()) return S_IFDIR;
  return S_IFREG;
}

Result<void> MountedModel::read_directory(Ino directory, std::uint64_t position,
                                          const Directory::VisitEntry& visit) const {
  const Node node = node_of(directory);
  if (!node.exists()) return no_such_inode(directory);
  if (!node.is_directory()) return fail(ErrorCode::InvalidArgument, ENOTDIR, "not a directory");
  const auto in_mount = [&](std::string_view name, Ino ino, std::uint64_t next) {
    const bool leads_out = name == ".." && node.ino == kRootIno;
    return visit(name, leads_out ? kRootIno : space_.in_mount(ino), next);
  };
  bool goes_on = true;
  const auto counted = [&](std::string_view name, Ino ino, std::uint64_t next) {
    return goes_on = in_mount(name, ino, next);
  };
  const bool may_hold_scratch = node.kind == Node::Kind::Directory;
  if (!may_hold_scratch || position < kFirstScratchPosition)
    directory_of(node.ino).list(node.ino, position, counted);
  if (!goes_on || !may_hold_scratch) return {};
  // The first page of the scratch files comes right after the last page of the tensors.
  if (position < kFirstScratchPosition) load_scratch();
  list_scratch(node.ino, position, in_mount);
  return {};
}

struct statvfs MountedModel::statistics() const {
  // The space that deleted tensors have left in the archives is free space: new tensors use it first
  // (core/commit/archive_edit.h).
  struct statvfs st {};
  std::uint64_t free_bytes = 0;
  st.f_bsize = kFragmentBytes;
  st.f_frsize = kFragmentBytes;
  const Model& model = this->model();
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

std::optional<FreeSpace> MountedModel::free_space() const {
  if (options_.is_read_only) return std::nullopt;
  const auto& archive = model().shards().back().archive;  // new tensors go there
  return archive ? stfs::free_space(archive->local_file()->descriptor()) : std::nullopt;
}

void add_free_space(const FreeSpace& space, struct statvfs& st) {
  // A tensor takes no inode of the store.
  constexpr fsfilcnt_t kFreeFiles = 1 << 20;
  st.f_blocks += space.free_bytes / kFragmentBytes;
  st.f_bfree += space.free_bytes / kFragmentBytes;
  st.f_bavail += space.available_bytes / kFragmentBytes;
  st.f_ffree = st.f_favail = kFreeFiles;
}

void MountedModel::note_told(Ino ino) const {
  const Node node = node_of(ino);
  if (node.is_view()) views_.note_told(node.ino);
  if (node.kind == Node::Kind::Tensor) may_be_known_[number_of(node.tensor)] = true;
}

void MountedModel::visit_cached(const Stale& stale, const VisitCached& visit) const {
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

Ino MountedModel::directory_looked_up(Ino ino) const {
  const Node node = node_of(ino);
  if (node.ino == kHiddenIno) return space_.in_mount(kRootIno);
  const bool is_cached =
      node.exists() && !node.is_of_source() && !node.is_staged() && node.kind != Node::Kind::Draft;
  const auto tensor = is_cached ? tensor_behind(node.ino) : std::nullopt;
  if (!is_cached || Views::is_counted(node.ino) || (tensor && lookups_[number_of(*tensor)] == 0)) return 0;
  if (node.ino == kRootIno) return kRootIno;
  return space_.in_mount(node.is_view() ? Views::directory(node.ino) : tree_.table().parent(node.ino));
}

void MountedModel::refuse(std::string why) {
  foreign_.break_touched_base();
  const MutexLock lock(refusal_mutex_);
  why_refused_ = std::move(why);
  is_refused_ = true;
}

bool MountedModel::is_at_path(std::uint32_t shard) const {
  if (!model().shards()[shard].archive) return false;
  const Archive& archive = model().archive(shard);
  const auto found = archive.status_at_path();
  return found && found->identity.same_file(archive.identity());
}

void MountedModel::visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const {
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
  for (const FixedEntry& entry : TransactionDirectory::kEntries)
    visit(space_.in_mount(kHiddenIno), entry.name);
}

void MountedModel::set_mtime(Ino ino, struct timespec mtime) {
  const Node node = node_of(ino);
  if (!node.exists() || node.is_directory() || node.is_of_source() || node.is_other_form()) return;
  if (node.kind == Node::Kind::Draft) {
    const auto content = shared_content(node);
    NewTensor* const made = content ? content->new_tensor() : nullptr;
    if (made != nullptr) made->set_mtime(ns_of(mtime));
    return;
  }
  const auto staged = node.is_staged() ? transactions_.content(node.ino) : nullptr;
  if (staged) return open_files_.keep_mtime(*staged, mtime);
  open_files_.keep_mtime(node.ino, mtime);
  if (!node.is_staged()) states_.set_mtime(node.tensor, mtime);
}

}  // namespace stfs
