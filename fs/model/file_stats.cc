// Combines what the archive, the permissions and pending writes say.
#include "fs/model/file_stats.h"

#include <time.h>

#include <algorithm>

#include "core/tensor/npy.h"
#include "core/tensor/npy_writer.h"
#include "fs/tree/names.h"

namespace stfs {
namespace {

constexpr std::uint64_t kStatBlockBytes = 512;  // the unit of st_blocks, whatever st_blksize says
constexpr std::uint32_t kPreferredReadBytes = 1 << 20;

}  // namespace

Result<struct stat> FileStats::of(const Node& node) const {
  if (node.is_of_source()) return of_pretrained(node);
  if (node.is_view()) return of_view(node);
  if (node.kind == Node::Kind::StagedNpy) return of_staged_npy(node);
  if (node.kind == Node::Kind::Draft) {
    const auto content = parts_.shared_content(node);
    return content ? Result<struct stat>(of_draft(node, *content)) : no_such_inode(node.ino);
  }
  return node.is_directory() ? of_directory(node) : of_tensor(node);
}

struct stat FileStats::filled(Ino ino, mode_t type, const Permissions& shown,
                              std::uint64_t size_bytes) const {
  struct stat st {};
  st.st_ino = parts_.space.in_mount(ino);
  st.st_blksize = kPreferredReadBytes;
  st.st_mode = type | (shown.mode & ~parts_.options.umask);
  st.st_uid = shown.uid;
  st.st_gid = shown.gid;
  st.st_nlink = 1;
  st.st_size = static_cast<off_t>(size_bytes);
  st.st_blocks = static_cast<blkcnt_t>((size_bytes + kStatBlockBytes - 1) / kStatBlockBytes);
  return st;
}

struct stat FileStats::of_directory(const Node& node) const {
  constexpr mode_t kWrite = 0222;
  // r is 4, x is 1: the right to read a tensor gives its directory's x.
  constexpr unsigned kReadToSearch = 2;
  Permissions shown = parts_.permissions.of_any();
  // An edit may change every shard, and so may a checkpoint that is made in `.safetensors`.
  if (node.kind == Node::Kind::Directory || node.ino == kHiddenIno)
    shown.mode &= parts_.options.allows_edits ? parts_.permissions.of_all().mode | ~kWrite : ~kWrite;
  shown.mode |= (shown.mode & 0444) >> kReadToSearch;
  if (parts_.options.is_shared && node.is_staged()) shown = parts_.transactions.restricted(node.ino, shown);
  struct stat st = filled(node.ino, S_IFDIR, shown, 0);
  st.st_nlink = 2 + (node.is_staged() ? 0 : parts_.tree.table().subdirectories(node.ino));
  st.st_mtim = st.st_ctim = st.st_atim = timespec_of(parts_.model->front_version().status.identity.mtime_ns);
  return st;
}

Result<struct stat> FileStats::of_tensor(const Node& node) const {
  if (!node.is_staged()) parts_.may_be_known[number_of(node.tensor)] = true;
  const auto content = parts_.shared_content(node);
  const Model& model = *parts_.model;
  // No look-up holds the tensor yet. An edit has deleted it meanwhile, and another one has taken its bytes.
  if (!model.has(node.tensor)) return no_such_inode(node.ino);
  const std::uint64_t size_bytes =
      content ? content->shown_size_bytes() : model.tensor(node.tensor).data.size_bytes;
  const Permissions shown = parts_.permissions.of_shard(model.place(node.tensor).shard);
  struct stat st = filled(node.ino, S_IFREG, shown, size_bytes);
  if (!model.ids().position(node.tensor)) st.st_nlink = 0;
  st.st_mtim = st.st_ctim = st.st_atim = parts_.states.of(node.tensor).mtime;
  return st;
}

Result<struct stat> FileStats::of_view(const Node& node) const {
  const Ino ino = node.ino;
  if (node.is_directory()) {
    constexpr mode_t kWrite = 0222;
    struct stat st = of_directory(parts_.resolve(kHiddenIno));
    st.st_ino = parts_.space.in_mount(ino);
    st.st_mode &= ~(kWrite | S_ISVTX);
    if (ino == Views::kNpy)
      st.st_mode |= of_directory({.ino = kRootIno, .kind = Node::Kind::Directory}).st_mode & kWrite;
    return st;
  }
  const auto size_bytes = parts_.views.size_bytes(ino);
  if (!size_bytes) return tl::unexpected(size_bytes.error());
  constexpr mode_t kRead = 0444;
  constexpr mode_t kReadWrite = 0666;
  const auto tensor = parts_.views.tensor(ino);
  Permissions shown =
      tensor ? parts_.permissions.of_shard(parts_.model->place(*tensor).shard) : parts_.permissions.of_all();
  const bool is_writable = (Views::is_npy(ino) || Views::is_archive(ino)) && parts_.options.allows_edits;
  shown.mode &= is_writable ? kReadWrite : kRead;
  struct stat st = filled(ino, S_IFREG, shown, *size_bytes);
  if (Views::is_log(ino)) {
    st.st_mode = S_IFREG | S_IRUSR;
    st.st_uid = parts_.views.reader_of_log(ino);
  }
  if (ino == parts_.views.present(Views::kArchive)) st.st_nlink = 2;  // it has a name in pretrained/, too
  std::int64_t model_mtime_ns = parts_.model->front().identity().mtime_ns;
  if (parts_.model->delta()) {
    model_mtime_ns = std::max(model_mtime_ns, parts_.model->shards().back().archive->identity().mtime_ns);
  }
  st.st_mtim = st.st_ctim = st.st_atim =
      tensor ? parts_.states.of(*tensor).mtime : timespec_of(model_mtime_ns);
  return st;
}

Result<struct stat> FileStats::of_pretrained(const Node& node) const {
  auto shown = pretrained_.attributes(node);
  if (shown) shown->st_ino = parts_.space.in_mount(node.ino);
  if (shown || node.ino != PretrainedDirectory::kDirectory) return shown;
  // The source directory can't be read: the model alone is shown.
  return of_view({.ino = node.ino, .kind = Node::Kind::ViewDirectory});
}

struct stat FileStats::of_draft(const Node& node, const PendingContent& content) const {
  const auto shard = static_cast<std::uint32_t>(parts_.model->shards().size() - 1);
  const NewTensor* const made = content.made()->tensor();
  // Other mounts write to a scratch file, too.
  const bool is_scratch = made != nullptr && made->is_scratch();
  Permissions permissions = parts_.permissions.of_shard(shard);
  // Somebody may have moved a private file into the scratch directory.
  const auto own = is_scratch ? made->scratch()->status() : std::nullopt;
  if (own) permissions = strictest(permissions, own->permissions);
  struct stat st =
      filled(node.ino, S_IFREG, permissions, is_scratch ? made->size_bytes() : content.shown_size_bytes());
  if (content.is_unlinked) st.st_nlink = 0;
  if (made != nullptr) {
    st.st_mtim = timespec_of(made->mtime_ns());
  } else {
    clock_gettime(CLOCK_REALTIME, &st.st_mtim);
  }
  st.st_ctim = st.st_atim = st.st_mtim;
  return st;
}

Result<FileStats::StagedNpy> FileStats::staged_npy(const Node& node) const {
  StagedNpy shown{.plain = parts_.transactions.bytes_file(node.ino), .status = {}, .head = {}};
  auto status = of(parts_.resolve(shown.plain));
  if (!status) return pass_on(std::move(status));
  shown.status = *status;
  if (const auto form = parts_.transactions.form(node.ino); form && form->shape.size() <= kMaxNpyRank) {
    const auto size_bytes = static_cast<std::uint64_t>(shown.status.st_size);
    shown.head = npy_header(npy_form(form->dtype, form->shape, size_bytes));
  }
  return shown;
}

Result<struct stat> FileStats::of_staged_npy(const Node& node) const {
  constexpr mode_t kWrite = 0222;
  const auto shown = staged_npy(node);
  if (!shown) return tl::unexpected(shown.error());
  struct stat st = shown->status;
  st.st_ino = parts_.space.in_mount(node.ino);
  st.st_size = shown->head ? st.st_size + static_cast<off_t>(shown->head->size()) : 0;
  if (!parts_.options.allows_edits) st.st_mode &= ~kWrite;
  return st;
}

}  // namespace stfs
