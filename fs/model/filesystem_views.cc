// Gives the views of `.safetensors/` their bytes, times and permissions (views.h).
#include <fmt/format.h>

#include <algorithm>
#include <climits>

#include "fs/model/filesystem.h"

namespace stfs {

std::optional<int> Filesystem::same_file(Ino ino) const {
  const ArchiveReader& archive = model_->front();
  const bool is_same = is_read_only() && !options_.fails_on_change &&
                       views_.is_the_archive(InodeSpace::local(ino)) && archive.is_as_in_file() &&
                       archive.bytes().is_mapped() && !is_refused_;
  return is_same ? std::optional(archive.local_file()->descriptor()) : std::nullopt;
}

Result<struct stat> Filesystem::stat_of_view(const Node& node) const {
  const Ino ino = node.ino;
  if (node.is_directory()) {
    constexpr mode_t kWrite = 0222;
    struct stat st = stat_of_directory(resolve(kHiddenIno));
    st.st_ino = space_.in_mount(ino);
    st.st_mode &= ~(kWrite | S_ISVTX);
    if (ino == Views::kNpy)
      st.st_mode |= stat_of_directory({.ino = kRootIno, .kind = Node::Kind::Directory}).st_mode & kWrite;
    return st;
  }
  const auto size_bytes = views_.size_bytes(ino);
  if (!size_bytes) return tl::unexpected(size_bytes.error());
  constexpr mode_t kRead = 0444;
  constexpr mode_t kReadWrite = 0666;
  constexpr std::uint64_t kStatBlockBytes = 512;
  struct stat st {};
  st.st_ino = space_.in_mount(ino);
  const auto tensor = views_.tensor(ino);
  const Permissions shown =
      tensor ? permissions_.of_shard(model_->place(*tensor).shard) : permissions_.of_all();
  const bool is_writable = (Views::is_npy(ino) || Views::is_archive(ino)) && options_.allows_edits;
  st.st_mode = S_IFREG | (shown.mode & (is_writable ? kReadWrite : kRead) & ~options_.umask);
  st.st_nlink = ino == views_.present(Views::kArchive) ? 2 : 1;  // it has a name in pretrained/, too
  st.st_uid = shown.uid;
  st.st_gid = shown.gid;
  st.st_blksize = 1 << 20;
  st.st_size = static_cast<off_t>(*size_bytes);
  st.st_blocks = static_cast<blkcnt_t>((*size_bytes + kStatBlockBytes - 1) / kStatBlockBytes);
  std::int64_t model_mtime_ns = model_->front().identity().mtime_ns;
  if (model_->delta()) {
    model_mtime_ns = std::max(model_mtime_ns, model_->shards().back().archive->identity().mtime_ns);
  }
  st.st_mtim = st.st_ctim = st.st_atim = tensor ? states_.of(*tensor).mtime : timespec_of(model_mtime_ns);
  return st;
}

struct stat Filesystem::stat_of_pretrained(const Node& node) const {
  struct stat st = *stat_of_view({.ino = node.ino, .kind = Node::Kind::ViewDirectory});
  // Who may list the source directory may list its entries here.
  if (const auto source = pretrained_.source()) {
    constexpr mode_t kReadAndSearch = 0555;
    st.st_mode = S_IFDIR | (source->permissions.mode & kReadAndSearch & ~options_.umask);
    st.st_uid = options_.uid.value_or(source->permissions.uid);
    st.st_gid = options_.gid.value_or(source->permissions.gid);
    st.st_mtim = st.st_ctim = st.st_atim = source->mtime;
  }
  if (!node.is_link()) return st;
  constexpr mode_t kAll = 0777;  // nobody asks a link's permissions
  st.st_mode = S_IFLNK | kAll;
  st.st_nlink = 1;
  st.st_size = static_cast<off_t>(pretrained_.target(node.ino).size());
  return st;
}

Result<std::string> Filesystem::read_link(Ino ino) const {
  const Node node = resolve(ino);
  if (!node.exists()) return no_such_inode(ino);
  if (!node.is_link()) return fail(ErrorCode::InvalidArgument, EINVAL, "is no symbolic link");
  std::string target = pretrained_.target(node.ino);
  if (target.size() >= PATH_MAX)
    return fail(ErrorCode::InvalidArgument, ENAMETOOLONG,
                "the path in the directory of the model is too long");
  return target;
}

std::vector<Stale> Filesystem::stale_views(const Stale& tensors_stale) {
  const Ino first = InodeTable::ino_of_tensor(TensorId{});
  const Ino first_stale = InodeSpace::local(tensors_stale.first);
  const Ino last_stale = InodeSpace::local(tensors_stale.last);
  const std::uint32_t ids = model_->ids().end();
  if (tensors_stale.what == Stale::What::Nothing || ids == 0) return {};
  if (last_stale < first || first_stale >= first + ids) return {};
  if (reader_.is_any_broken()) views_.note_broken();
  const TensorId first_tensor = InodeTable::tensor(std::max(first_stale, first));
  const TensorId last_tensor = InodeTable::tensor(std::min(last_stale, first + ids - 1));
  std::vector<Stale> found = views_.stale(first_tensor, last_tensor);
  for (Stale& view : found) view = stale(view.first, view.last, view.what);
  for (const Ino file : transactions_.take_cached(first_tensor, last_tensor))
    found.push_back(stale(file, Stale::What::Content));
  return found;
}

}  // namespace stfs
