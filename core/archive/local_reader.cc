#include "core/archive/local_reader.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "core/base/mutex.h"
#include "core/format/foreign_file.h"
#include "core/journal/file_lock.h"
#include "core/journal/recovery.h"

namespace stfs {

LocalReader::LocalReader(std::filesystem::path path, std::filesystem::path real_path, Storage& storage,
                         std::shared_ptr<Storage> beside, std::unique_ptr<File> file)
    : ArchiveReader(std::move(path)),
      real_path_(std::move(real_path)),
      storage_(storage),
      beside_(std::move(beside)),
      file_(std::move(file)),
      is_layered_(file_->filesystem_type() == OVERLAYFS_SUPER_MAGIC),
      present_(file_.get()) {}

Result<void> LocalReader::lock_as_reader(Deadline wait_until) {
  constexpr std::chrono::milliseconds kPause{5};
  for (;;) {
    auto conflict = file().try_lock(kReadersByte, LockKind::Shared);
    if (!conflict && lacks_readers_lock(conflict.error())) return {};
    RETURN_IF_ERROR(conflict);
    if (!*conflict) {
      is_locked_ = true;
      return {};
    }
    if (time_left(wait_until).count() == 0)
      return fail(ErrorCode::Busy, EBUSY, "another process is changing its structure");
    std::this_thread::sleep_for(kPause);
  }
}

bool LocalReader::is_being_edited() const {
  std::array<std::byte, kNoHeaderLength.size()> first{};
  return file().read(first, 0) && first == kNoHeaderLength;
}

Result<void> LocalReader::load(Io io) {
  const auto opened = status();
  RETURN_IF_ERROR(opened);
  const std::uint64_t size_bytes = overlay_.size_bytes().value_or(opened->identity.size_bytes);
  auto json = header_text(size_bytes);
  RETURN_IF_ERROR(json);
  auto header = parse(*json, size_bytes);
  RETURN_IF_ERROR(header);
  auto bytes = FileByteSource::open(file(), opened->identity.size_bytes, io);
  RETURN_IF_ERROR(bytes);
  io_ = io;
  sources_.emplace_back(std::move(*bytes));
  bytes_ = sources_.back().get();
  set_identity(opened->identity);
  const ArchiveStamp stamp{.device = opened->identity.device,
                           .inode = opened->identity.inode,
                           .birth_ns = opened->birth_ns,
                           .size_bytes = size_bytes,
                           .header_size_bytes = (*header)->size_bytes,
                           .header_hash = (*header)->hash};
  TensorIds ids((*header)->content.tensors.size());
  set_version(std::make_shared<ArchiveVersion>(ArchiveVersion{.header = std::move(*header),
                                                              .status = *opened,
                                                              .stamp = stamp,
                                                              .bytes = sources_.back(),
                                                              .ids = std::move(ids)}));
  return {};
}

Result<std::shared_ptr<const ArchiveHeader>> LocalReader::parse(std::string_view json,
                                                                std::uint64_t file_size_bytes) {
  auto content = parse_header(json, file_size_bytes - kHeaderLengthBytes - json.size());
  RETURN_IF_ERROR(content);
  return ArchiveHeader::of(std::move(*content), json);
}

Result<void> LocalReader::change_structure(std::shared_ptr<const ArchiveHeader> header, TensorIds ids) {
  const auto now = status();
  RETURN_IF_ERROR(now);
  const std::uint64_t size_bytes = now->identity.size_bytes;
  if (size_bytes != header->file_size_bytes()) {
    return fail(
        ErrorCode::ArchiveChanged, ESTALE,
        fmt::format("the file has {} bytes, but its header says {}", size_bytes, header->file_size_bytes()));
  }
  if (!bytes_.load()->resize(size_bytes)) {
    // Reserve the same room again: a file that grows byte by byte needs few maps.
    auto longer = FileByteSource::open(file(), size_bytes, io_, size_bytes);
    RETURN_IF_ERROR(longer);
    sources_.emplace_back(std::move(*longer));
    bytes_ = sources_.back().get();
  }
  const auto before = version();
  auto next = std::make_shared<ArchiveVersion>(*before);
  next->status = *now;
  next->stamp.size_bytes = size_bytes;
  next->stamp.header_size_bytes = header->size_bytes;
  next->stamp.header_hash = header->hash;
  next->header = std::move(header);
  next->bytes = sources_.back();
  next->ids = std::move(ids);
  set_version(std::move(next));
  set_identity(now->identity);
  return {};
}

Result<std::string> LocalReader::header_text(std::uint64_t file_size_bytes) const {
  std::array<std::byte, kForeignBytes> first{};
  const std::span<std::byte> start(first.data(), std::min<std::uint64_t>(file_size_bytes, first.size()));
  const auto there = start.first(std::min(start.size(), kHeaderLengthBytes));
  RETURN_IF_ERROR(read_file(there, 0));
  auto length = header_length(there, file_size_bytes);
  if (!length) {
    Error error = std::move(length).error();
    const std::string_view kind = read_file(start, 0) ? foreign_file(start) : "";
    if (!kind.empty()) error.message = kind;
    return tl::unexpected(std::move(error));
  }
  std::string json(static_cast<std::size_t>(*length), '\0');
  RETURN_IF_ERROR(read_file(std::as_writable_bytes(std::span(json)), kHeaderLengthBytes));
  return json;
}

Result<void> LocalReader::read_file(std::span<std::byte> to, std::uint64_t offset) const {
  auto part = part_in_file(to, offset);
  RETURN_IF_ERROR(part);
  if (auto read = part->empty() ? Result<void>{} : file().read(*part, offset); !read) return read;
  return overlay_.lay_over(to, offset);
}

Result<void> LocalReader::read_through(std::span<std::byte> to, std::uint64_t offset) const {
  auto part = part_in_file(to, offset);
  RETURN_IF_ERROR(part);
  const auto elsewhere = overlay_.read_elsewhere(to, offset);
  RETURN_IF_ERROR(elsewhere);
  if (*elsewhere) return {};
  RETURN_IF_ERROR(ArchiveReader::read_through(*part, offset));
  return overlay_.lay_over(to, offset);
}

Result<std::span<std::byte>> LocalReader::part_in_file(std::span<std::byte> to, std::uint64_t offset) const {
  const auto promised_bytes = overlay_.size_bytes();
  if (!promised_bytes || offset + to.size() > *promised_bytes) return to;  // a read past the end fails
  auto size_bytes = file().size_bytes();
  RETURN_IF_ERROR(size_bytes);
  const std::uint64_t there = offset < *size_bytes ? *size_bytes - offset : 0;
  const auto part = to.first(static_cast<std::size_t>(std::min<std::uint64_t>(to.size(), there)));
  std::ranges::fill(to.subspan(part.size()), std::byte{0});
  return part;
}

Result<MappedSpan> LocalReader::map(ByteRange file_range) const {
  return overlay_.is_empty() ? ArchiveReader::map(file_range) : MappedSpan();
}

Result<ArchiveReader::Change> LocalReader::check_for_change() {
  return guard_memory([&] { return look_for_change(); });
}

Result<ArchiveReader::Change> LocalReader::look_at_file() const {
  Change change;
  const auto now = status();
  RETURN_IF_ERROR(now);
  change.size_bytes = now->identity.size_bytes;
  const std::uint64_t size_bytes = overlay_.size_bytes().value_or(change.size_bytes);
  const auto json = header_text(size_bytes);
  // A storage error says nothing about the header.
  if (!json && json.error().code == ErrorCode::System) return tl::unexpected(json.error());
  change.is_broken = !json || XXH3_64bits(json->data(), json->size()) != version()->header->hash;
  if (json && change.is_broken) change.header = parse(*json, size_bytes).value_or(nullptr);
  change.is_being_edited = change.is_broken && !change.header && is_being_edited();
  return change;
}

Result<ArchiveReader::Change> LocalReader::look_for_change() {
  const FileIdentity known = identity();
  const auto now = status();
  RETURN_IF_ERROR(now);
  Change change;
  change.size_bytes = now->identity.size_bytes;
  if (now->identity != known) {
    RETURN_IF_ERROR(follow_copy());
    auto looked = look_at_file();
    if (looked && looked->is_broken && !looked->header && !looked->is_being_edited) looked = look_at_file();
    RETURN_IF_ERROR(looked);
    change = std::move(*looked);
    change.is_touched = true;
    if (!is_locked_) change.header = nullptr;
  }
  const auto at_path = status_at_path();
  if (!at_path && at_path.error().errno_value != ENOENT && at_path.error().errno_value != ENOTDIR) {
    return tl::unexpected(at_path.error());
  }
  change.is_gone = !at_path;
  if (at_path) change.links = at_path->links;
  // If overlayfs has copied the archive, our own open file has the copy's inode number as well.
  change.is_replaced = !at_path || !at_path->identity.same_file(now->identity);
  return change;
}

Result<void> LocalReader::adopt_identity() {
  const auto now = status();
  RETURN_IF_ERROR(now);
  RETURN_IF_ERROR(renew_overlay());
  set_identity(now->identity);
  return {};
}

FileIdentity LocalReader::identity() const {
  const MutexLock lock(identity_mutex_);
  return identity_;
}

void LocalReader::set_identity(const FileIdentity& identity) {
  const MutexLock lock(identity_mutex_);
  identity_ = identity;
}

Result<std::vector<JournalReport>> LocalReader::show_pending_journals() {
  auto found = pending_journals(storage(), real_path_, file());
  RETURN_IF_ERROR(found);
  overlay_.set_pending(std::move(found->shown));
  return std::move(found->not_shown);
}

Result<void> LocalReader::renew_overlay() {
  if (!overlay_.has_pending()) return {};
  auto shown = show_pending_journals();
  return shown ? Result<void>() : pass_on(std::move(shown));
}

bool LocalReader::is_copy(const FileStatus& before, const FileStatus& after) {
  return !after.identity.same_file(before.identity) || after.birth_ns != before.birth_ns;
}

Result<void> LocalReader::switch_to(File& opened, const FileStatus& before, const FileStatus& after) {
  if (const auto known = version()) {  // the archive has been loaded
    auto next = std::make_shared<ArchiveVersion>(*known);
    next->stamp.device = after.identity.device;
    next->stamp.inode = after.identity.inode;
    next->stamp.birth_ns = after.birth_ns;
    // Another process may have caused the copy earlier.
    if (is_copy(before, after) || is_layered_ || !bytes_.load()->is_mapped()) {
      RETURN_IF_ERROR(bytes_.load()->follow(opened));
    }
    set_version(std::move(next));
    const MutexLock lock(identity_mutex_);
    // Keep the known times, so that changes by others are still noticed.
    if (identity_.same_file(before.identity)) {
      identity_.device = after.identity.device;
      identity_.inode = after.identity.inode;
    }
  }
  present_ = &opened;
  return {};
}

Result<void> LocalReader::follow_copy() {
  // A file that is open for writing has been copied, and the map shows the copy.
  if (!is_layered_ || !bytes_.load()->is_mapped() || is_opened_again()) return {};
  auto copy = open_again(Access::ReadOnly);
  // The file was deleted or replaced: the map keeps the old one.
  if (!copy && copy.error().code == ErrorCode::ArchiveChanged) return {};
  RETURN_IF_ERROR(copy);
  return bytes_.load()->remap(**copy);
}

}  // namespace stfs
