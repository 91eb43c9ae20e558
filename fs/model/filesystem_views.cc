// Gives the views of `.safetensors/` their bytes, times and permissions (views.h).
#include <fmt/format.h>

#include "fs/model/filesystem.h"

namespace stfs {

std::optional<int> Filesystem::same_file(Ino ino) const {
  const Archive& archive = model_->front();
  const bool is_same = is_read_only() && is_view(ino) && views_->is_the_archive(ino) &&
                       archive.is_as_in_file() && archive.bytes().is_mapped() && !is_refused_;
  return is_same ? std::optional(model_->front().file().descriptor()) : std::nullopt;
}

ViewSource Filesystem::view_source() const {
  ViewSource source;
  source.read = [this](std::uint32_t tensor, ByteRange part) { return read_archive(tensor, part); };
  source.copy = [this](std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> to) {
    return copy_archive(tensor, offset, to);
  };
  source.read_parts = [this](std::uint32_t tensor, const ViewSource::Work& work) -> Result<void> {
    const auto archive = unbroken_archive_of(tensor);
    if (!archive) return tl::unexpected(archive.error());
    const std::shared_lock lock(lock_of(model_->place(tensor)));
    const ByteRange whole = range_of(tensor);
    std::vector<std::byte> scratch;
    return work(
        {.read =
             [&](ByteRange part) {
               return (*archive)->read({whole.offset + part.offset, part.size_bytes}, scratch);
             },
         .copy_from = [&](const ByteSource::Copy& copy) { return (*archive)->copy_from(whole, copy); }});
  };
  source.read_header = [this](ByteRange range) -> Result<std::vector<std::byte>> {
    if (shards_[0].is_broken) {
      return fail(ErrorCode::ArchiveChanged, EIO,
                  model_->front().path().string() + ": the archive's header was changed underneath");
    }
    std::vector<std::byte> bytes(static_cast<std::size_t>(range.size_bytes));
    if (auto read = model_->front().read_through(bytes, range.offset); !read) return pass_on(std::move(read));
    return bytes;
  };
  return source;
}

Result<struct stat> Filesystem::stat_of_view(Ino ino) const {
  constexpr mode_t kWrite = 0222;
  if (Views::is_directory(ino)) {
    struct stat st = stat_of(TransactionDirectory::kViews);
    st.st_ino = ino;
    st.st_mode &= ~(kWrite | S_ISVTX);
    return st;
  }
  const auto size_bytes = views_->size_bytes(ino);
  if (!size_bytes) return tl::unexpected(size_bytes.error());
  constexpr mode_t kRead = 0444;
  constexpr std::uint64_t kStatBlockBytes = 512;
  struct stat st {};
  st.st_ino = ino;
  const auto tensor = views_->tensor(ino);
  const Permissions shown = tensor ? permissions_of_tensor(*tensor) : permissions_of_all();
  st.st_mode = S_IFREG | (shown.mode & kRead & ~options_.umask);
  st.st_nlink = 1;
  st.st_uid = shown.uid;
  st.st_gid = shown.gid;
  st.st_blksize = 1 << 20;
  st.st_size = static_cast<off_t>(*size_bytes);
  st.st_blocks = static_cast<blkcnt_t>((*size_bytes + kStatBlockBytes - 1) / kStatBlockBytes);
  st.st_mtim = st.st_ctim = st.st_atim =
      tensor ? state_of(*tensor).mtime : timespec_of(model_->front().identity().mtime_ns);
  return st;
}

Result<void> Filesystem::read_view_directory(Ino directory, std::uint64_t position,
                                             const VisitEntry& visit) const {
  constexpr std::uint64_t kDots = 2;
  for (; position < kDots + views_->size(directory); ++position) {
    bool goes_on = false;
    if (position < kDots) {
      goes_on = position == 0 ? visit(".", directory, 1) : visit("..", TransactionDirectory::kViews, 2);
    } else {
      const auto [name, ino] = views_->child(directory, static_cast<std::uint32_t>(position - kDots));
      goes_on = visit(name, ino, position + 1);
    }
    if (!goes_on) break;
  }
  return {};
}

std::vector<Stale> Filesystem::stale_views(const Stale& stale) {
  const Ino first = InodeTable::ino_of_tensor(0);
  const std::uint32_t tensors = model_->tensors().size();
  if (stale.what == Stale::What::Nothing || tensors == 0) return {};
  if (stale.last < first || stale.first >= first + tensors) return {};
  if (is_any_broken_) views_->note_broken();
  const auto first_tensor = static_cast<std::uint32_t>(std::max(stale.first, first) - first);
  const auto last_tensor =
      static_cast<std::uint32_t>(std::min(stale.last - first, std::uint64_t{tensors} - 1));
  std::vector<Stale> found = views_->stale(first_tensor, last_tensor);
  for (const Ino file : transactions_.take_cached(first_tensor, last_tensor))
    found.push_back(Stale::one(file, Stale::What::Content));
  return found;
}

}  // namespace stfs
