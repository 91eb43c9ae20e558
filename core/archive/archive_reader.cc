#include "core/archive/archive_reader.h"

namespace stfs {

Result<void> ArchiveReader::read_through(std::span<std::byte> to, std::uint64_t offset) const {
  if (to.empty()) return {};
  auto read = bytes().read(to, offset);
  return read ? read : tl::unexpected(std::move(read).error().within(path_.string()));
}

Result<MappedSpan> ArchiveReader::map(ByteRange file_range) const {
  if (file_range.empty()) return MappedSpan();
  auto mapped = bytes().map(file_range);
  if (!mapped) return tl::unexpected(std::move(mapped).error().within(path_.string()));
  return mapped;
}

bool ArchiveReader::copy_from(ByteRange file_range, const ByteSource::Copy& copy) const {
  return !file_range.empty() && bytes().copy_from(file_range, copy);
}

Result<std::span<const std::byte>> ArchiveReader::read(ByteRange file_range,
                                                       std::vector<std::byte>& scratch) const {
  auto read = guard_memory([&] {
    scratch.resize(static_cast<std::size_t>(file_range.size_bytes));
    return read_through(scratch, file_range.offset);
  });
  RETURN_IF_ERROR(read);
  return std::span<const std::byte>(scratch);
}

bool ArchiveReader::is_as_known() const {
  const auto now = status();
  return now && now->identity == identity();
}

}  // namespace stfs
