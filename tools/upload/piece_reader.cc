// Reads runs of neighbouring parts, and slices.
#include "tools/upload/piece_reader.h"

#include <algorithm>
#include <cstring>

#include "core/archive/slice_reader.h"

namespace stfs::upload {
namespace {

/// One more system call takes as long as moving this many bytes in the cache.
constexpr std::uint64_t kWorthMovingBytes = 16 << 10;

/// Moves the last part first. Each part moves up and overwrites at most parts that have already moved.
void move_apart(std::span<const Part> parts, std::span<std::byte> to) {
  std::size_t packed = 0;
  for (const Part& part : parts) packed += static_cast<std::size_t>(part.bytes.size_bytes);
  const std::size_t base = static_cast<std::size_t>(parts.front().offset);
  for (std::size_t at = parts.size(); at-- > 0;) {
    const auto size_bytes = static_cast<std::size_t>(parts[at].bytes.size_bytes);
    packed -= size_bytes;
    std::memmove(to.data() + parts[at].offset, to.data() + base + packed, size_bytes);
  }
}

}  // namespace

Result<void> PieceReader::read(const Transfer& transfer, std::span<std::byte> to) {
  const auto parts = list_.parts_of(transfer);
  const auto continues = [&](const Part& before, const Part& next) {
    const Read& one = list_.reads[before.read];
    const Read& other = list_.reads[next.read];
    return one.slice == nullptr && other.slice == nullptr && one.archive == other.archive &&
           one.file_offset + before.bytes.end() == other.file_offset + next.bytes.offset &&
           next.bytes.size_bytes <= kWorthMovingBytes;
  };
  for (std::size_t at = 0; at < parts.size();) {
    std::size_t run = 1;
    std::uint64_t run_bytes = parts[at].bytes.size_bytes;
    if (run_bytes <= kWorthMovingBytes) {
      for (; at + run < parts.size() && continues(parts[at + run - 1], parts[at + run]); ++run) {
        run_bytes += parts[at + run].bytes.size_bytes;
      }
    }
    const Part together{parts[at].read, {parts[at].bytes.offset, run_bytes}, parts[at].offset};
    if (auto read = read_part(together, to); !read) return read;
    if (run > 1) move_apart(parts.subspan(at, run), to);
    at += run;
  }
  for (std::size_t at = 1; at < parts.size(); ++at) {
    const std::uint64_t gap = parts[at - 1].offset + parts[at - 1].bytes.size_bytes;
    std::memset(to.data() + gap, 0, static_cast<std::size_t>(parts[at].offset - gap));
  }
  return {};
}

Result<void> PieceReader::read_part(const Part& part, std::span<std::byte> to) {
  const Read& read = list_.reads[part.read];
  const auto place =
      to.subspan(static_cast<std::size_t>(part.offset), static_cast<std::size_t>(part.bytes.size_bytes));
  if (read.slice == nullptr) return read.archive->read_through(place, read.file_offset + part.bytes.offset);
  // Use reads, not the map: touched pages of a map count as this process's memory, which would grow with the
  // model.
  const TensorBytes tensor = {.read = [&](ByteRange range) -> Result<std::span<const std::byte>> {
    scratch_.resize(static_cast<std::size_t>(range.size_bytes));
    if (auto done = read.archive->read_through(scratch_, read.file_offset + range.offset); !done) {
      return pass_on(std::move(done));
    }
    return std::span<const std::byte>(scratch_);
  }};
  return read_slice(*read.slice, part.bytes, tensor, place);
}

}  // namespace stfs::upload
