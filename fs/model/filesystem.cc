// Answers requests that change nothing (filesystem.h).
#include "fs/model/filesystem.h"

#include "core/base/mutex.h"

namespace stfs {
namespace {

constexpr std::uint64_t kFragmentBytes = 4096;

}  // namespace

Filesystem::Filesystem(std::unique_ptr<Archive> archive, const FilesystemOptions& options)
    : Filesystem(std::make_unique<Model>(std::move(archive)), options) {}

Filesystem::Filesystem(std::unique_ptr<Model> model, const FilesystemOptions& options)
    : parts_(std::move(model), options) {
  scratch_.begin();
  structure_.log_found_gaps();
}

Result<struct stat> Filesystem::lookup(Ino parent, std::string_view name) const {
  const Node directory = parts_.resolve(parent);
  if (!directory.is_directory()) return no_such_inode(parent);
  auto entry = parts_.directory_of(directory.ino).find(directory.ino, name);
  if (!entry) {
    const auto draft = scratch_.find(directory.ino, name);
    if (!draft) return pass_on(std::move(entry));
    entry = draft->ino;
  }
  const Node found = parts_.resolve(parts_.views.note_found(*entry));
  auto shown = show(found);
  if (!shown) parts_.views.forget(found.ino, 1);
  return shown;
}

Result<struct stat> Filesystem::show(const Node& found) const {
  // In a refused model, directories and views that describe the model stay visible; files that show tensors
  // fail.
  const bool shows_tensors =
      !found.is_directory() && !found.is_of_source() &&
      (!found.is_view() || Views::is_archive(found.ino) || parts_.views.tensor(found.ino).has_value());
  if (!parts_.is_refused || !shows_tensors) return stats_.of(found);
  const MutexLock lock(refusal_mutex_);
  return fail(ErrorCode::ArchiveChanged, EIO, why_refused_);
}

std::optional<TensorId> Filesystem::tensor_behind(Ino of_mount) const {
  const Ino ino = InodeSpace::local(of_mount);
  if (TransactionDirectory::owns(ino)) return parts_.transactions.tensor_of(ino);
  if (Views::owns(ino)) return Views::is_counted(ino) ? std::nullopt : parts_.views.tensor(ino);
  return InodeTable::may_be_tensor(ino) ? std::optional(InodeTable::tensor(ino)) : std::nullopt;
}

void Filesystem::note_lookup(Ino ino) const {
  parts_.pretrained.note_lookup(InodeSpace::local(ino));
  if (const auto tensor = tensor_behind(ino)) ++parts_.lookups[number_of(*tensor)];
}

void Filesystem::forget(Ino ino, std::uint64_t lookups) {
  parts_.pretrained.forget(InodeSpace::local(ino), lookups);
  bool may_free = parts_.views.forget(InodeSpace::local(ino), lookups);
  if (const auto tensor = tensor_behind(ino)) {
    const auto number = static_cast<std::uint32_t>(lookups);
    may_free = parts_.lookups[number_of(*tensor)].fetch_sub(number) == number;
    if (may_free) scratch_.let_go(InodeSpace::local(ino));
  }
  if (may_free && !parts_.model->removed().empty()) parts_.wake_janitor();
}

Result<struct stat> Filesystem::attributes(Ino ino) const {
  const Node node = parts_.resolve(ino);
  return node.exists() ? stats_.of(node) : no_such_inode(ino);
}

mode_t Filesystem::file_type(Ino ino) const {
  const Node node = parts_.resolve(ino);
  if (node.is_directory()) return S_IFDIR;
  return S_IFREG;
}

Result<void> Filesystem::read_directory(Ino directory, std::uint64_t position,
                                        const VisitEntry& visit) const {
  const Node node = parts_.resolve(directory);
  if (!node.exists()) return no_such_inode(directory);
  if (!node.is_directory()) return fail(ErrorCode::InvalidArgument, ENOTDIR, "not a directory");
  const auto in_mount = [&](std::string_view name, Ino ino, std::uint64_t next) {
    const bool leads_out = name == ".." && node.ino == kRootIno;
    return visit(name, leads_out ? kRootIno : parts_.space.in_mount(ino), next);
  };
  bool goes_on = true;
  const auto counted = [&](std::string_view name, Ino ino, std::uint64_t next) {
    return goes_on = in_mount(name, ino, next);
  };
  const bool may_hold_scratch = node.kind == Node::Kind::Directory;
  if (!may_hold_scratch || position < ScratchFiles::kFirstPosition)
    parts_.directory_of(node.ino).list(node.ino, position, counted);
  if (!goes_on || !may_hold_scratch) return {};
  if (position < ScratchFiles::kFirstPosition) scratch_.load();
  scratch_.list(node.ino, position, in_mount);
  return {};
}

struct statvfs Filesystem::statistics() const {
  // What deleted tensors have left in the archives counts as free: new tensors take it first
  // (core/commit/archive_edit.h).
  struct statvfs st {};
  std::uint64_t free_bytes = 0;
  st.f_bsize = kFragmentBytes;
  st.f_frsize = kFragmentBytes;
  const Model& model = *parts_.model;
  for (const Shard& shard : model.shards()) {
    if (!shard.archive) continue;
    const std::uint64_t size_bytes = shard.version->status.identity.size_bytes;
    st.f_blocks += (size_bytes + kFragmentBytes - 1) / kFragmentBytes;
    for (const ByteRange filler : shard.version->header->content.fillers) free_bytes += filler.size_bytes;
  }
  st.f_bfree = free_bytes / kFragmentBytes;
  st.f_bavail = parts_.options.is_read_only ? 0 : st.f_bfree;
  st.f_files = parts_.tree.table().size();
  st.f_namemax = 255;
  if (parts_.options.is_read_only) st.f_flag |= ST_RDONLY;
  return st;
}

std::optional<FreeSpace> Filesystem::free_space() const {
  if (parts_.options.is_read_only) return std::nullopt;
  const auto& archive = parts_.model->shards().back().archive;  // new tensors go there
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

void Filesystem::note_told(Ino ino) const {
  const Node node = parts_.resolve(ino);
  if (node.is_view()) parts_.views.note_told(node.ino);
  if (node.kind == Node::Kind::Tensor) parts_.may_be_known[number_of(node.tensor)] = true;
}

void Filesystem::visit_cached(const Stale& stale, const VisitCached& visit) const {
  const Ino first = InodeTable::ino_of_tensor(TensorId{});
  const auto take = [](std::atomic<bool>& mark) { return mark && mark.exchange(false); };
  const Ino last = InodeSpace::local(stale.last);
  for (Ino ino = InodeSpace::local(stale.first); ino <= last; ++ino) {
    const std::uint64_t tensor = ino - first;
    if (ino < first || tensor >= parts_.may_be_known.size()) {
      visit(parts_.space.in_mount(ino), stale.what);
      continue;
    }
    const bool is_cached = stale.what == Stale::What::Content && take(parts_.may_be_cached[tensor]);
    const bool is_known = take(parts_.may_be_known[tensor]);
    if (is_cached || is_known)
      visit(parts_.space.in_mount(ino), is_cached ? Stale::What::Content : Stale::What::Attributes);
  }
}

void Filesystem::refuse(std::string why) {
  foreign_.break_touched_base();
  const MutexLock lock(refusal_mutex_);
  why_refused_ = std::move(why);
  parts_.is_refused = true;
}

bool Filesystem::is_at_path(std::uint32_t shard) const {
  if (!parts_.model->shards()[shard].archive) return false;
  const Archive& archive = parts_.model->archive(shard);
  const auto found = archive.storage().status(archive.path());
  return found && found->identity.same_file(archive.identity());
}

void Filesystem::visit_known(const std::function<void(Ino directory, std::string_view name)>& visit) const {
  const InodeTable& table = parts_.tree.table();
  for (std::size_t left = table.directory_count(); left-- > 0;) {
    const Ino directory = table.directory(left);
    for (std::size_t at = 0; at < table.child_count(directory); ++at)
      visit(parts_.space.in_mount(directory), table.file_name(table.child(directory, at)));
  }
  parts_.views.visit_known(
      [&](Ino directory, std::string_view name) { visit(parts_.space.in_mount(directory), name); });
  parts_.pretrained.visit_known(
      [&](Ino directory, std::string_view name) { visit(parts_.space.in_mount(directory), name); });
  visit(parts_.space.in_mount(kHiddenIno), PretrainedDirectory::kEntry.name);
  for (const FixedEntry& view : Views::kEntries) visit(parts_.space.in_mount(kHiddenIno), view.name);
  for (const FixedEntry& entry : TransactionDirectory::kEntries)
    visit(parts_.space.in_mount(kHiddenIno), entry.name);
}

void Filesystem::set_mtime(Ino ino, struct timespec mtime) {
  const Node node = parts_.resolve(ino);
  if (!node.exists() || node.is_directory() || node.is_of_source() || node.is_other_form()) return;
  if (node.kind == Node::Kind::Draft) {
    const auto content = parts_.shared_content(node);
    NewTensor* const made = content ? content->made()->tensor() : nullptr;
    if (made != nullptr) made->set_mtime(ns_of(mtime));
    return;
  }
  const auto staged = node.is_staged() ? parts_.transactions.content(node.ino) : nullptr;
  if (staged) return parts_.open_files.keep_mtime(*staged, mtime);
  parts_.open_files.keep_mtime(node.ino, mtime);
  if (!node.is_staged()) parts_.states.set_mtime(node.tensor, mtime);
}

}  // namespace stfs
