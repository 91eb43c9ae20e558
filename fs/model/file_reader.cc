// Reads tensors, views, and what is pending.
#include "fs/model/file_reader.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace stfs {

Result<Bytes> FileReader::read(Ino ino, std::uint64_t offset, std::size_t size_bytes) const {
  const Node node = parts_.resolve(ino);
  if (!node.exists()) return no_such_inode(ino);
  if (node.is_directory()) return fail(ErrorCode::InvalidArgument, EISDIR, "is a directory");
  if (node.is_source_file()) return pretrained_.read(node, offset, size_bytes);
  if (node.is_view()) return parts_.views.read(node.ino, offset, size_bytes);
  if (node.kind == Node::Kind::StagedNpy) return read_staged_npy(node, offset, size_bytes);
  if (node.kind == Node::Kind::Draft) {
    const auto content = parts_.shared_content(node);
    return content ? read_pending(*content, offset, size_bytes) : no_such_inode(ino);
  }
  if (node.is_staged()) parts_.transactions.note_read(node.ino);
  parts_.may_be_cached[number_of(node.tensor)] = true;
  if (const auto content = parts_.shared_content(node)) return read_pending(*content, offset, size_bytes);
  const std::uint64_t end = parts_.model->tensor(node.tensor).data.size_bytes;
  if (offset >= end) return Bytes();
  return parts_.reader.read(node.tensor, {offset, std::min<std::uint64_t>(size_bytes, end - offset)});
}

Result<Bytes> FileReader::read_pending(PendingContent& content, std::uint64_t offset,
                                       std::size_t size_bytes) const {
  const ContentLock::Reading reading(content.mutex);
  const std::uint64_t end = content.size_bytes();
  if (offset >= end) return Bytes();
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::min<std::uint64_t>(size_bytes, end - offset)));
  const auto read_base = [&](std::span<std::byte> to, std::uint64_t at) {
    return parts_.reader.copy(content.tensor(), at, to);
  };
  const auto read = content.read(bytes, offset, read_base);
  if (!read) return tl::unexpected(read.error());
  return Bytes(std::move(bytes));
}

Result<Bytes> FileReader::read_staged_npy(const Node& node, std::uint64_t offset,
                                          std::size_t size_bytes) const {
  const auto shown = stats_.staged_npy(node);
  if (!shown) return tl::unexpected(shown.error());
  if (!shown->head) return Bytes();
  const std::string& head = *shown->head;
  if (offset >= head.size()) return read(shown->plain, offset - head.size(), size_bytes);
  const auto in_head = std::as_bytes(std::span(head)).subspan(static_cast<std::size_t>(offset));
  const std::size_t taken = std::min(in_head.size(), size_bytes);
  auto body = read(shown->plain, 0, size_bytes - taken);
  if (!body) return body;
  auto rest = body->copy();
  if (!rest) return pass_on(std::move(rest));
  std::vector<std::byte> bytes(in_head.begin(), in_head.begin() + static_cast<std::ptrdiff_t>(taken));
  bytes.insert(bytes.end(), rest->begin(), rest->end());
  return Bytes(std::move(bytes));
}

std::optional<int> FileReader::same_file(Ino ino) const {
  const ArchiveReader& archive = parts_.model->front();
  const bool is_same = parts_.options.is_read_only && !parts_.options.fails_on_change &&
                       parts_.views.is_the_archive(InodeSpace::local(ino)) && archive.is_as_in_file() &&
                       archive.bytes().is_mapped() && !parts_.is_refused;
  return is_same ? std::optional(archive.local_file()->descriptor()) : std::nullopt;
}

}  // namespace stfs
