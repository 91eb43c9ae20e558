// Checks the file's size after each copy. If the file's new end is inside a page, bytes behind that end read
// as zeros, without an error (fs/KERNEL.md). A truncation after the copy has not changed the copied bytes.
#include "core/storage/file_byte_source.h"

#include <fmt/format.h>

#include "core/storage/unmappable_store.h"

namespace stfs {
namespace {

/// The message has no path: the archive adds it.
tl::unexpected<Error> cut_short(std::uint64_t size_bytes, ByteRange range) {
  return fail(ErrorCode::ArchiveCut, EIO,
              fmt::format("truncated: the file ends at byte {}, the bytes [{}, {}) are missing", size_bytes,
                          range.offset, range.end()));
}

/// A failure of a disk is EIO, whatever it is. Of a web server, the user can do something about the others.
tl::unexpected<Error> unreadable(const Error& why, ByteRange range) {
  const bool is_of_server = why.code == ErrorCode::ArchiveChanged || why.errno_value == ENETUNREACH;
  return fail(is_of_server ? why.code : ErrorCode::System, is_of_server ? why.errno_value : EIO,
              fmt::format("bytes [{}, {}) can't be read: {}", range.offset, range.end(), why.message));
}

}  // namespace

Result<std::unique_ptr<FileByteSource>> FileByteSource::open(const File& file, std::uint64_t size_bytes,
                                                             Io io, std::uint64_t room_bytes) {
  std::unique_ptr<FileByteSource> source(new FileByteSource(file, size_bytes));
  if (io == Io::Auto) source->why_not_mapped_ = unmappable_store(file.filesystem_type());
  if (io == Io::Auto && file.descriptor() < 0 && source->why_not_mapped_.empty())
    source->why_not_mapped_ = "a web server";
  if (io == Io::Pread || !source->why_not_mapped_.empty()) return source;
  auto map = MappedRegion::map(file, size_bytes + room_bytes);
  if (map) {
    source->map_ = std::move(*map);
  } else if (io == Io::Mmap || map.error().errno_value != ENODEV) {
    return pass_on(std::move(map));
  } else {
    // Some FUSE file systems can't be mapped.
    source->why_not_mapped_ = "a file system that maps no files";
  }
  return source;
}

Result<void> FileByteSource::check(ByteRange range) const {
  const auto size_bytes = file_.load()->known_size_bytes();
  if (!size_bytes) return unreadable(size_bytes.error(), range);
  if (range.end() > *size_bytes) return cut_short(*size_bytes, range);
  return {};
}

Result<void> FileByteSource::read(std::span<std::byte> to, std::uint64_t offset) const {
  const ByteRange range{offset, to.size()};
  auto done = file_.load()->read(to, offset);
  if (!done && done.error().code != ErrorCode::ArchiveCut) return unreadable(done.error(), range);
  RETURN_IF_ERROR(check(range));
  // The file was cut during the read, and has grown again.
  if (!done) return cut_short(offset, range);
  // Prefetch after the read, so that the read's own bytes arrive first. The kernel itself reads ahead in a
  // mapped file.
  if (!map_) file_.load()->prefetch(readahead_.after(range).intersection({0, size_bytes_}));
  return {};
}

Result<void> FileByteSource::follow(const File& copy) {
  RETURN_IF_ERROR(remap(copy));
  file_ = &copy;
  return {};
}

bool FileByteSource::resize(std::uint64_t size_bytes) {
  size_bytes_ = size_bytes;
  return !map_ || size_bytes <= map_->size_bytes();
}

Result<void> FileByteSource::remap(const File& copy) {
  return map_ ? map_->remap(copy) : Result<void>{};
}

Result<MappedSpan> FileByteSource::map(ByteRange range) const {
  if (!map_) return MappedSpan();
  auto populated = map_->populate(range, *file_.load());
  RETURN_IF_ERROR(check(range));
  if (!populated) return unreadable(populated.error(), range);
  return map_->span(range);
}

MappedSpan FileByteSource::span(ByteRange range) const {
  return map_ ? map_->span(range) : MappedSpan();
}

bool FileByteSource::copy_from(ByteRange range, const Copy& copy) const {
  return map_ && map_->copy_from(range, copy) && check(range);
}

}  // namespace stfs
