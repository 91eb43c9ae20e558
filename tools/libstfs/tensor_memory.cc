#include "tools/libstfs/tensor_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/archive/slice_reader.h"
#include "core/storage/kernel_copy.h"
#include "core/tensor/slice_copy.h"

namespace stfs::interface {

/// Gives programs the addresses of an archive's pages; core/storage/mapped_region.h gives them only to this
/// class. This library never reads through these addresses, because touching a lost page raises SIGBUS
/// (stfs.h, MAPPED DATA). A program that asks for them reads the pages itself.
class ForeignPages {
 public:
  /// Returns the address of the first byte of the range. Null if the range is not in a map: the store cannot
  /// be mapped, or a journal overrides the archive.
  static std::byte* address(const ArchiveReader& archive, ByteRange file_range) {
    if (!archive.is_as_in_file()) return nullptr;
    return const_cast<std::byte*>(archive.bytes().span(file_range).bytes_.data());  // the pages are read-only
  }
};

namespace {

/// Implements read() for memory of this process, where no read can fail. Not for pages of a file.
void read_memory(const std::byte* address, const Slice& slice, ByteRange range, std::span<std::byte> to) {
  static_cast<void>(copy_slice(slice, range, {address, static_cast<std::size_t>(slice.extent.end())}, to));
}

/// Returns null if the map is unavailable. Maps with MAP_NORESERVE: otherwise a model larger than the memory
/// could not be mapped, although most of it is never written to.
void* map_for_writing(const File& file, std::uint64_t offset, std::size_t size_bytes) {
  void* map = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                     file.descriptor(), static_cast<off_t>(offset));
  return map == MAP_FAILED ? nullptr : map;
}

class HeapMemory final : public TensorMemory {
 public:
  explicit HeapMemory(std::uint64_t size_bytes)
      : bytes_(new (std::align_val_t(kAlignment)) std::byte[static_cast<std::size_t>(size_bytes)]) {}
  [[nodiscard]] std::byte* address() const override { return bytes_.get(); }
  [[nodiscard]] bool is_writable() const override { return true; }
  [[nodiscard]] Result<void> read(const Slice& slice, ByteRange range,
                                  std::span<std::byte> to) const override {
    read_memory(address(), slice, range, to);
    return {};
  }
  [[nodiscard]] std::span<std::byte> bytes(std::uint64_t size_bytes) const {
    return {bytes_.get(), static_cast<std::size_t>(size_bytes)};
  }

 private:
  static constexpr std::size_t kAlignment = 256;  // required by DLPack
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t(kAlignment)); }
  };
  std::unique_ptr<std::byte[], Free> bytes_;
};

class PrivateMap final : public TensorMemory {
 public:
  /// @param offset  the beginning of the map in the archive's file.
  PrivateMap(std::shared_ptr<const Model> model, const ArchiveReader& archive, std::uint64_t offset,
             void* map, std::size_t size_bytes, std::size_t begin)
      : model_(std::move(model)),
        archive_(archive),
        offset_(offset),
        map_(map),
        size_bytes_(size_bytes),
        begin_(begin) {}
  PrivateMap(const PrivateMap&) = delete;
  PrivateMap& operator=(const PrivateMap&) = delete;
  ~PrivateMap() override { ::munmap(map_, size_bytes_); }

  [[nodiscard]] std::byte* address() const override { return static_cast<std::byte*>(map_) + begin_; }
  [[nodiscard]] bool is_writable() const override { return true; }
  // Pages that no program has written to are still pages of the file.
  [[nodiscard]] bool is_mapped() const override { return true; }
  [[nodiscard]] Result<void> read(const Slice& slice, ByteRange range,
                                  std::span<std::byte> to) const override {
    std::vector<std::byte> scratch;
    const TensorBytes tensor = {.read = [&](ByteRange piece) -> Result<std::span<const std::byte>> {
      scratch.resize(static_cast<std::size_t>(piece.size_bytes));
      const std::span<const std::byte> from(address() + piece.offset, scratch.size());
      auto copied = copy_by_kernel(from, scratch);
      // Check the size of the file after copying: the rest of the last page of a truncated file reads as
      // zeros.
      if (copied) copied = archive_.bytes().check({offset_ + begin_ + piece.offset, piece.size_bytes});
      if (!copied) return tl::unexpected(std::move(copied).error().within(archive_.path().string()));
      return std::span<const std::byte>(scratch);
    }};
    return read_slice(slice, range, tensor, to);
  }

 private:
  std::shared_ptr<const Model> model_;
  const ArchiveReader& archive_;
  std::uint64_t offset_;
  void* map_;
  std::size_t size_bytes_;
  std::size_t begin_;  // offset of the tensor in the map
};

class ArchiveMemory final : public TensorMemory {
 public:
  ArchiveMemory(std::shared_ptr<const Model> model, std::shared_ptr<const ForgivingMaps> maps,
                std::uint32_t tensor)
      : model_(std::move(model)),
        maps_(std::move(maps)),
        archive_(model_->archive_of(tensor)),
        range_(model_->file_range(tensor)) {
    if (!range_.empty()) address_ = ForeignPages::address(archive_, range_);
    if (address_ == nullptr || !maps_) return;
    std::byte* const map = maps_->address(model_->place(tensor).shard);
    if (map != nullptr) address_ = map + range_.offset;
  }

  [[nodiscard]] std::byte* address() const override { return address_; }
  [[nodiscard]] bool is_mapped() const override { return address_ != nullptr; }

  [[nodiscard]] Result<void> check() const override {
    if (address_ == nullptr) return {};
    auto there = archive_.bytes().check(range_);
    if (!there) return tl::unexpected(std::move(there).error().within(archive_.path().string()));
    return {};
  }

  [[nodiscard]] Result<void> read(const Slice& slice, ByteRange range,
                                  std::span<std::byte> to) const override {
    if (slice.is_contiguous()) {
      return archive_.read_through(to.first(static_cast<std::size_t>(range.size_bytes)),
                                   range_.offset + slice.first_byte + range.offset);
    }
    std::vector<std::byte> scratch;
    // Use reads only. Copying from the map needs a handler for SIGBUS, and a library must not install one.
    const TensorBytes tensor = {.read = [&](ByteRange piece) {
      return archive_.read({range_.offset + piece.offset, piece.size_bytes}, scratch);
    }};
    return read_slice(slice, range, tensor, to);
  }

  [[nodiscard]] Result<std::shared_ptr<TensorMemory>> map_private(ByteRange range) const override {
    if (address_ == nullptr) return std::shared_ptr<TensorMemory>();
    const auto page_bytes = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t begin = range_.offset + range.offset;
    const std::uint64_t first_page = begin / page_bytes * page_bytes;
    const auto size_bytes = static_cast<std::size_t>(begin + range.size_bytes - first_page);
    void* map = map_for_writing(*archive_.local_file(), first_page, size_bytes);
    // mmap fails when the process has reached its limit of maps (vm.max_map_count).
    if (map == nullptr) return std::shared_ptr<TensorMemory>();
    return std::make_shared<PrivateMap>(model_, archive_, first_page, map, size_bytes,
                                        static_cast<std::size_t>(begin - first_page));
  }

 private:
  std::shared_ptr<const Model> model_;
  std::shared_ptr<const ForgivingMaps> maps_;
  const ArchiveReader& archive_;
  ByteRange range_;  // in the file
  std::byte* address_ = nullptr;
};

class ArenaMemory final : public TensorMemory {
 public:
  ArenaMemory(std::shared_ptr<device::Arena> arena, ByteRange place)
      : arena_(std::move(arena)), place_(place) {}

  [[nodiscard]] std::byte* address() const override {
    return static_cast<std::byte*>(arena_->address()) + place_.offset;
  }
  [[nodiscard]] Result<void> read(const Slice& slice, ByteRange range,
                                  std::span<std::byte> to) const override {
    if (range.empty()) return {};
    if (arena_->host_bytes().empty()) {
      return fail(
          ErrorCode::InvalidArgument, ENOTSUP,
          fmt::format("is on {}, and this process cannot read this memory: use DLPack", device().name()));
    }
    read_memory(address(), slice, range, to);
    return {};
  }
  [[nodiscard]] device::Device device() const override { return arena_->device(); }
  [[nodiscard]] bool is_writable() const override { return !arena_->is_read_only(); }

 private:
  std::shared_ptr<device::Arena> arena_;
  ByteRange place_;
};

}  // namespace

std::shared_ptr<TensorMemory> arena_memory(std::shared_ptr<device::Arena> arena, ByteRange place) {
  return std::make_shared<ArenaMemory>(std::move(arena), place);
}

ForgivingMaps::ForgivingMaps(const Model& model) : maps_(model.shards().size()) {
  for (std::uint32_t shard = 0; shard < maps_.size(); ++shard) {
    if (!model.shards()[shard].archive || !model.reader(shard).bytes().is_mapped()) continue;
    const auto size_bytes = static_cast<std::size_t>(model.version(shard).status.identity.size_bytes);
    maps_[shard] = {map_for_writing(*model.reader(shard).local_file(), 0, size_bytes), size_bytes};
  }
}

ForgivingMaps::~ForgivingMaps() {
  for (const Map& map : maps_) {
    if (map.address != nullptr) ::munmap(map.address, map.size_bytes);
  }
}

Result<std::shared_ptr<TensorMemory>> TensorMemory::map_private(ByteRange) const {
  return std::shared_ptr<TensorMemory>();
}

std::shared_ptr<TensorMemory> archive_memory(std::shared_ptr<const Model> model,
                                             std::shared_ptr<const ForgivingMaps> maps,
                                             std::uint32_t tensor) {
  return std::make_shared<ArchiveMemory>(std::move(model), std::move(maps), tensor);
}

Result<std::shared_ptr<TensorMemory>> copy_of(const TensorMemory& memory, const Slice& slice) {
  auto copy = std::make_shared<HeapMemory>(slice.size_bytes);
  auto read = memory.read(slice, {0, slice.size_bytes}, copy->bytes(slice.size_bytes));
  RETURN_IF_ERROR(read);
  return copy;
}

}  // namespace stfs::interface
