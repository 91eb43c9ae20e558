#include "core/archive/archive_version.h"

#include <algorithm>
#include <iterator>

namespace stfs {

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
