#include <time.h>

#include <algorithm>

#include "core/tensor/npy.h"
#include "core/tensor/npy_writer.h"
#include "fs/model/mounted_model.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

constexpr std::uint64_t kStatBlockBytes = 512;  // the unit of st_blocks, whatever st_blksize says
constexpr std::uint32_t kPreferredReadBytes = 1 << 20;

}  // namespace

Result<struct stat> MountedModel::attributes(Ino ino) const {
  const Node node = node_of(ino);
  return node.exists() ? status_of(node) : no_such_inode(ino);
}

Result<struct stat> MountedModel::status_of(const Node& node) const {
  if (node.is_of_source()) return status_of_served(node);
  if (node.is_view()) return status_of_view(node);
  if (node.kind == Node::Kind::StagedNpy) return status_of_staged_npy(node);
  if (node.kind == Node::Kind::Draft) {
    const auto content = shared_content(node);
    return content ? Result<struct stat>(status_of_draft(node, *content)) : no_such_inode(node.ino);
  }
  return node.is_directory() ? status_of_directory(node) : status_of_tensor(node);
}

struct stat MountedModel::filled_status(Ino ino, mode_t type, const Permissions& shown,
                                        std::uint64_t size_bytes) const {
  struct stat st {};
  st.st_ino = space_.in_mount(ino);
  st.st_blksize = kPreferredReadBytes;
  st.st_mode = type | (shown.mode & ~options_.umask);
  st.st_uid = shown.uid;
  st.st_gid = shown.gid;
  st.st_nlink = 1;
  st.st_size = static_cast<off_t>(size_bytes);
  st.st_blocks = static_cast<blkcnt_t>((size_bytes + kStatBlockBytes - 1) / kStatBlockBytes);
  return st;
}

struct stat MountedModel::status_of_directory(const Node& node) const {
  constexpr mode_t kWrite = 0222;
  // r is 4, x is 1: the right to read a tensor gives its directory's x.
  constexpr unsigned kReadToSearch = 2;
  Permissions shown = permissions_.of_any();
  // An edit may change every shard, and so may a checkpoint that is made in `.safetensors`.
  if (node.kind == Node::Kind::Directory || node.ino == kHiddenIno)
    shown.mode &= options_.allows_edits ? permissions_.of_all().mode | ~kWrite : ~kWrite;
  shown.mode |= (shown.mode & 0444) >> kReadToSearch;
  if (options_.is_shared && node.is_staged()) shown = transactions_.restricted(node.ino, shown);
  struct stat st = filled_status(node.ino, S_IFDIR, shown, 0);
  st.st_nlink = 2 + (node.is_staged() ? 0 : tree_.table().subdirectories(node.ino));
  st.st_mtim = st.st_ctim = st.st_atim = timespec_of(model().front_version().status.identity.mtime_ns);
  return st;
}

Result<struct stat> MountedModel::status_of_tensor(const Node& node) const {
  if (!node.is_staged()) may_be_known_[number_of(node.tensor)] = true;
  const auto content = shared_content(node);
  const Model& model = this->model();
  // No look-up holds the tensor yet. One edit may have deleted the tensor, and another edit may have reused
  // its bytes.
  if (!model.has(node.tensor)) return no_such_inode(node.ino);
  const std::uint64_t size_bytes =
      content ? content->shown_size_bytes() : model.tensor(node.tensor).data.size_bytes;
  const Permissions shown = permissions_.of_shard(model.place(node.tensor).shard);
  struct stat st = filled_status(node.ino, S_IFREG, shown, size_bytes);
  if (!model.ids().position(node.tensor)) st.st_nlink = 0;
  st.st_mtim = st.st_ctim = st.st_atim = states_.of(node.tensor).mtime;
  return st;
}

Result<struct stat> MountedModel::status_of_view(const Node& node) const {
  const Ino ino = node.ino;
  if (node.is_directory()) {
    constexpr mode_t kWrite = 0222;
    struct stat st = status_of_directory(node_of(kHiddenIno));
    st.st_ino = space_.in_mount(ino);
    st.st_mode &= ~(kWrite | S_ISVTX);
    if (ino == Views::kNpy)
      st.st_mode |= status_of_directory({.ino = kRootIno, .kind = Node::Kind::Directory}).st_mode & kWrite;
    return st;
  }
  const auto size_bytes = views_.size_bytes(ino);
  RETURN_IF_ERROR(size_bytes);
  constexpr mode_t kRead = 0444;
  constexpr mode_t kReadWrite = 0666;
  const auto tensor = views_.tensor(ino);
  Permissions shown = tensor ? permissions_.of_shard(model().place(*tensor).shard) : permissions_.of_all();
  const bool is_writable = (Views::is_npy(ino) || Views::is_archive(ino)) && options_.allows_edits;
  shown.mode &= is_writable ? kReadWrite : kRead;
  struct stat st = filled_status(ino, S_IFREG, shown, *size_bytes);
  if (Views::is_log(ino)) {
    st.st_mode = S_IFREG | S_IRUSR;
    st.st_uid = views_.reader_of_log(ino);
  }
  if (ino == views_.present(Views::kArchive)) st.st_nlink = 2;  // the second name is in pretrained/
  std::int64_t model_mtime_ns = model().front().identity().mtime_ns;
  if (model().delta()) {
    model_mtime_ns = std::max(model_mtime_ns, model().shards().back().archive->identity().mtime_ns);
  }
  st.st_mtim = st.st_ctim = st.st_atim = tensor ? states_.of(*tensor).mtime : timespec_of(model_mtime_ns);
  return st;
}

Result<struct stat> MountedModel::status_of_served(const Node& node) const {
  auto shown = served_files_.attributes(node);
  if (shown) shown->st_ino = space_.in_mount(node.ino);
  if (shown || node.ino != PretrainedDirectory::kDirectory) return shown;
  // The source directory can't be read: the model alone is shown.
  return status_of_view({.ino = node.ino, .kind = Node::Kind::ViewDirectory});
}

struct stat MountedModel::status_of_draft(const Node& node, const PendingFile& content) const {
  const NewTensor* const made = content.new_tensor();
  // Other mounts also write to a scratch file.
  const bool is_scratch = made != nullptr && made->is_scratch();
  // A checkpoint changes every shard, and a scratch file may get the name of a tensor of any shard.
  Permissions permissions = permissions_.of_all();
  // Another program may have moved a private file into the scratch directory.
  const auto own = is_scratch ? made->scratch()->status() : std::nullopt;
  if (own) permissions = strictest(permissions, own->permissions);
  struct stat st = filled_status(node.ino, S_IFREG, permissions,
                                 is_scratch ? made->size_bytes() : content.shown_size_bytes());
  if (content.is_unlinked) st.st_nlink = 0;
  if (made != nullptr) {
    st.st_mtim = timespec_of(made->mtime_ns());
  } else {
    clock_gettime(CLOCK_REALTIME, &st.st_mtim);
  }
  st.st_ctim = st.st_atim = st.st_mtim;
  return st;
}

Result<MountedModel::ShownNpy> MountedModel::shown_npy(const Node& node) const {
  ShownNpy shown{.plain = transactions_.bytes_file(node.ino), .status = {}, .head = {}};
  auto status = status_of(node_of(shown.plain));
  RETURN_IF_ERROR(status);
  shown.status = *status;
  if (const auto form = transactions_.form(node.ino); form && form->shape.size() <= kMaxNpyRank) {
    const auto size_bytes = static_cast<std::uint64_t>(shown.status.st_size);
    shown.head = npy_header(npy_form(form->dtype, form->shape, size_bytes));
  }
  return shown;
}

Result<struct stat> MountedModel::status_of_staged_npy(const Node& node) const {
  constexpr mode_t kWrite = 0222;
  const auto shown = shown_npy(node);
  RETURN_IF_ERROR(shown);
  struct stat st = shown->status;
  st.st_ino = space_.in_mount(node.ino);
  st.st_size = shown->head ? st.st_size + static_cast<off_t>(shown->head->size()) : 0;
  if (!options_.allows_edits) st.st_mode &= ~kWrite;
  return st;
}

}  // namespace stfs
