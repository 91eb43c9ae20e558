// Opening an archive, reading its ranges, noticing what becomes of it.
#include "core/archive.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <array>
#include <string>

namespace stfs {
namespace {

struct HeaderText {
  std::string json;
  std::uint64_t hash = 0;
};

/// Reads and checks the length, then the JSON; parses nothing.
Result<HeaderText> read_header_text(const File& file, std::uint64_t file_size_bytes) {
  std::array<std::byte, kHeaderLengthBytes> first{};
  const std::span<std::byte> there(first.data(), std::min<std::uint64_t>(file_size_bytes, first.size()));
  if (auto read = file.read(there, 0); !read) return pass_on(std::move(read));
  auto length = header_length(there, file_size_bytes);
  if (!length) return pass_on(std::move(length));
  HeaderText text;
  text.json.resize(static_cast<std::size_t>(*length));
  if (auto read = file.read(std::as_writable_bytes(std::span(text.json)), kHeaderLengthBytes); !read) {
    return pass_on(std::move(read));
  }
  text.hash = XXH3_64bits(text.json.data(), text.json.size());
  return text;
}

}  // namespace

Result<std::unique_ptr<Archive>> Archive::open(const std::filesystem::path& path, Access access,
                                               Storage& storage) {
  std::unique_ptr<Archive> archive(new Archive());
  std::error_code no_directory;
  archive->path_ = std::filesystem::absolute(path, no_directory);
  if (no_directory) return fail_system(no_directory.value(), path.string(), "resolve");
  archive->access_ = access;
  archive->storage_ = &storage;

  auto file = storage.open(archive->path_, access);
  if (!file) return pass_on(std::move(file));
  archive->file_ = std::move(*file);
  auto status = archive->file_->status();
  if (!status) return pass_on(std::move(status));
  archive->status_ = *status;
  archive->identity_ = status->identity;

  const std::uint64_t size_bytes = status->identity.size_bytes;
  auto text = read_header_text(*archive->file_, size_bytes);
  if (!text) return tl::unexpected(std::move(text).error().within(path.string()));
  archive->header_size_bytes_ = text->json.size();
  archive->header_hash_ = text->hash;
  auto header = parse_header(text->json, size_bytes - archive->data_offset());
  if (!header) return tl::unexpected(std::move(header).error().within(path.string()));
  archive->header_ = std::move(*header);

  auto map = MappedRegion::map(*archive->file_, size_bytes);
  if (!map) return tl::unexpected(std::move(map).error().within(path.string()));
  archive->map_ = std::move(*map);
  return archive;
}

Result<std::span<const std::byte>> Archive::read(ByteRange file_range) const {
  if (file_range.empty()) return std::span<const std::byte>{};
  auto populated = map_.populate(file_range, *file_);
  // A page that the new end of the file cuts reads as zeros behind that end, without an error
  // (KERNEL-NOTES.md), so a successful touch proves nothing about it: the size does. A file that is
  // cut after this line, before the kernel has copied the bytes, is seen one request later.
  auto status = file_->status();
  if (!status) return pass_on(std::move(status));
  const std::uint64_t size_bytes = status->identity.size_bytes;
  if (file_range.end() > size_bytes) {
    return fail(ErrorCode::ArchiveCut, EIO,
                fmt::format("{}: cut short: the file ends at byte {}, the bytes [{}, {}) are gone",
                            path_.string(), size_bytes, file_range.offset, file_range.end()));
  }
  if (!populated) {
    return fail(ErrorCode::System, EIO,
                fmt::format("{}: bytes [{}, {}) can't be read: {}", path_.string(), file_range.offset,
                            file_range.end(), populated.error().message));
  }
  return map_.bytes(file_range);
}

Result<Archive::Change> Archive::check_for_change() const {
  auto now = file_->status();
  if (!now) return pass_on(std::move(now));
  const FileIdentity known = identity();
  Change change;
  change.is_touched = now->identity != known;
  if (change.is_touched) {
    const auto text = read_header_text(*file_, now->identity.size_bytes);
    change.is_broken = !text || text->hash != header_hash_;
  }
  const auto at_path = storage_->status(path_);
  change.is_replaced = !at_path || !at_path->identity.same_file(known);
  return change;
}

Result<void> Archive::adopt_identity() {
  auto status = file_->status();
  if (!status) return pass_on(std::move(status));
  const std::scoped_lock lock(identity_mutex_);
  identity_ = status->identity;
  return {};
}

FileIdentity Archive::identity() const {
  const std::scoped_lock lock(identity_mutex_);
  return identity_;
}

}  // namespace stfs
