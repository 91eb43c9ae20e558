// A map that is populated before each answer, and reads with a look ahead.
#include "core/byte_source.h"

#include <fmt/format.h>

#include "core/bus_guard.h"
#include "core/mapped_region.h"
#include "core/readahead.h"
#include "core/store.h"

namespace stfs {
namespace {

/// Without the path, which the archive knows.
tl::unexpected<Error> cut_short(std::uint64_t size_bytes, ByteRange range) {
  return fail(ErrorCode::ArchiveCut, EIO,
              fmt::format("cut short: the file ends at byte {}, the bytes [{}, {}) are gone", size_bytes,
                          range.offset, range.end()));
}

tl::unexpected<Error> unreadable(const Error& why, ByteRange range) {
  return fail(ErrorCode::System, EIO,
              fmt::format("bytes [{}, {}) can't be read: {}", range.offset, range.end(), why.message));
}

class MappedBytes final : public ByteSource {
 public:
  MappedBytes(const File& file, MappedRegion map) : file_(file), map_(std::move(map)) {}

  Result<std::span<const std::byte>> read(ByteRange range, std::vector<std::byte>&) const override {
    auto populated = map_.populate(range, file_);
    // A page that the new end of the file cuts reads as zeros behind that end, without an error
    // (KERNEL-NOTES.md), so a successful touch proves nothing about it: the size does. A file that is
    // cut after this line, before the kernel has copied the bytes, is seen one request later.
    auto status = file_.status();
    if (!status) return pass_on(std::move(status));
    if (range.end() > status->identity.size_bytes) return cut_short(status->identity.size_bytes, range);
    if (!populated) return unreadable(populated.error(), range);
    return map_.bytes(range);
  }
  [[nodiscard]] bool copy_from(ByteRange range, const Copy& copy) const override {
    const std::span<const std::byte> bytes = map_.bytes(range);
    if (!copy_guarded(bytes, [&] { copy(bytes); })) return false;
    // As above.
    const auto size_bytes = file_.size_bytes();
    return size_bytes && range.end() <= *size_bytes;
  }
  [[nodiscard]] bool is_mapped() const override { return true; }

 private:
  const File& file_;
  MappedRegion map_;
};

class ReadBytes final : public ByteSource {
 public:
  ReadBytes(const File& file, std::uint64_t size_bytes) : file_(file), whole_{0, size_bytes} {}

  Result<std::span<const std::byte>> read(ByteRange range, std::vector<std::byte>& scratch) const override {
    const auto done = guard_memory([&]() -> Result<void> {
      scratch.resize(static_cast<std::size_t>(range.size_bytes));
      return file_.read(scratch, range.offset);
    });
    if (!done) return failure(done.error(), range);
    // Behind the read: what it waits for comes first.
    file_.prefetch(readahead_.after(range).intersection(whole_));
    return std::span<const std::byte>(scratch);
  }
  [[nodiscard]] bool copy_from(ByteRange, const Copy&) const override { return false; }
  [[nodiscard]] bool is_mapped() const override { return false; }

 private:
  [[nodiscard]] tl::unexpected<Error> failure(const Error& why, ByteRange range) const {
    if (why.code == ErrorCode::OutOfMemory) return tl::unexpected(why);
    if (why.code != ErrorCode::ArchiveCut) return unreadable(why, range);
    const auto size_bytes = file_.size_bytes();
    return size_bytes ? cut_short(*size_bytes, range) : tl::unexpected(why);
  }

  const File& file_;
  const ByteRange whole_;
  mutable Readahead readahead_;
};

}  // namespace

Result<std::unique_ptr<ByteSource>> ByteSource::open(const File& file, std::uint64_t size_bytes, Io io) {
  std::string_view why;
  if (io == Io::Auto) why = unmappable_store(file.filesystem_type());
  if (io != Io::Pread && why.empty()) {
    auto map = MappedRegion::map(file, size_bytes);
    if (map) return std::make_unique<MappedBytes>(file, std::move(*map));
    // Some file systems of programs map nothing.
    if (io == Io::Mmap || map.error().errno_value != ENODEV) return pass_on(std::move(map));
    why = "a file system that maps no files";
  }
  auto source = std::make_unique<ReadBytes>(file, size_bytes);
  source->why_not_mapped_ = why;
  return source;
}

}  // namespace stfs
