#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "fs/model/mounted_model.h"

namespace stfs {

Result<Bytes> MountedModel::read(Ino ino, std::uint64_t offset, std::size_t size_bytes) const {
  const Node node = node_of(ino);
  if (!node.exists()) {
    return Views::whole(InodeSpace::local(ino)) ? WholeViews::version_has_ended() : no_such_inode(ino);
  }
  if (node.is_directory()) return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
  if (node.is_source_file()) return served_files_.read(node, offset, size_bytes);
  if (node.is_view()) return views_.read(node.ino, offset, size_bytes);
  if (node.kind == Node::Kind::StagedNpy) return read_staged_npy(node, offset, size_bytes);
  if (node.kind == Node::Kind::Draft) {
    const auto content = shared_content(node);
    return content ? read_pending(*content, offset, size_bytes) : no_such_inode(ino);
  }
  if (node.is_staged()) transactions_.note_read(node.ino);
  may_be_cached_[number_of(node.tensor)] = true;
  if (const auto content = shared_content(node)) return read_pending(*content, offset, size_bytes);
  const std::uint64_t end = model().tensor(node.tensor).data.size_bytes;
  if (offset >= end) return Bytes();
  return reader_.read(node.tensor, {offset, std::min<std::uint64_t>(size_bytes, end - offset)});
}

Result<Bytes> MountedModel::read_pending(PendingFile& content, std::uint64_t offset,
                                         std::size_t size_bytes) const {
  const ContentLock::Reading reading(content.mutex);
  const std::uint64_t end = content.size_bytes();
  if (offset >= end) return Bytes();
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::min<std::uint64_t>(size_bytes, end - offset)));
  const auto read_base = [&](std::span<std::byte> to, std::uint64_t at) {
    return reader_.copy(content.tensor(), at, to);
  };
  RETURN_IF_ERROR(content.read(bytes, offset, read_base));
  return Bytes(std::move(bytes));
}

Result<Bytes> MountedModel::read_staged_npy(const Node& node, std::uint64_t offset,
                                            std::size_t size_bytes) const {
  const auto shown = shown_npy(node);
  RETURN_IF_ERROR(shown);
  if (!shown->head) return Bytes();
  const std::string& head = *shown->head;
  if (offset >= head.size()) return read(shown->plain, offset - head.size(), size_bytes);
  const auto in_head = std::as_bytes(std::span(head)).subspan(static_cast<std::size_t>(offset));
  const std::size_t taken = std::min(in_head.size(), size_bytes);
  auto body = read(shown->plain, 0, size_bytes - taken);
  RETURN_IF_ERROR(body);
  auto rest = body->copy();
  RETURN_IF_ERROR(rest);
  std::vector<std::byte> bytes(in_head.begin(), in_head.begin() + static_cast<std::ptrdiff_t>(taken));
  bytes.insert(bytes.end(), rest->begin(), rest->end());
  return Bytes(std::move(bytes));
}

std::optional<int> MountedModel::same_file(Ino ino) const {
  const ArchiveReader& archive = model().front();
  const bool is_same = options_.is_read_only && !options_.fails_on_change &&
                       views_.is_the_archive(InodeSpace::local(ino)) && archive.is_as_in_file() &&
                       archive.bytes().is_mapped() && !is_refused_;
  return is_same ? std::optional(archive.local_file()->descriptor()) : std::nullopt;
}

}  // namespace stfs
