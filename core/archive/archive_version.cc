#include "core/archive/archive_version.h"

#include <xxhash.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace stfs {

std::shared_ptr<const ArchiveHeader> ArchiveHeader::of(Header content, std::string_view json) {
  auto header = std::make_shared<ArchiveHeader>();
  header->content = std::move(content);
  header->size_bytes = json.size();
  header->hash = XXH3_64bits(json.data(), json.size());
  return header;
}

std::uint64_t ArchiveHeader::file_size_bytes() const {
  const std::uint32_t tensors = content.tensors.size();
  const std::uint64_t tensors_end = tensors == 0 ? 0 : content.tensors[tensors - 1].data.end();
  const std::uint64_t fillers_end = content.fillers.empty() ? 0 : content.fillers.back().end();
  return data_offset() + std::max(tensors_end, fillers_end);
}

bool ArchiveHeader::keeps(std::string_view name, ByteRange place) const {
  if (place.size_bytes == 0) return true;
  if (place.offset < data_offset()) return false;
  const ByteRange data = {place.offset - data_offset(), place.size_bytes};
  const TensorIndex& tensors = content.tensors;
  const auto own = tensors.find(name);
  if (own && tensors[*own].data == data) return true;
  if (!own && tensors.find(data)) return true;
  const auto after = std::ranges::upper_bound(content.fillers, data.offset, {}, &ByteRange::offset);
  if (after == content.fillers.begin()) return false;
  return std::prev(after)->contains(data);
}

}  // namespace stfs
