// Reads whole tensors and slices, and converts them.
#include "tools/upload/piece_reader.h"

#include <cstring>

#include "core/archive/slice_reader.h"
#include "tools/device/conversion.h"

namespace stfs::upload {

Result<void> PieceReader::read(const Transfer& transfer, std::span<std::byte> to) {
  const auto parts = list_.parts_of(transfer);
  for (const Part& part : parts) {
    RETURN_IF_ERROR(read_part(part, to));
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
  // Use reads, not the map: touched pages of a map are memory of this process, which would grow with the
  // model.
  const TensorBytes tensor = {.read = [&](ByteRange range) -> Result<std::span<const std::byte>> {
    scratch_.resize(static_cast<std::size_t>(range.size_bytes));
    RETURN_IF_ERROR(read.archive->read_through(scratch_, read.file_offset + range.offset));
    return std::span<const std::byte>(scratch_);
  }};
  return read_slice(*read.slice, part.bytes, tensor, place);
}

Result<TargetReader::Piece> TargetReader::read(std::uint32_t number, ByteRange range) {
  bytes_.resize(static_cast<std::size_t>(range.size_bytes));
  if (auto done = reader_.read_part({number, range, 0}, bytes_); !done) return pass_on(std::move(done));
  const PlannedTensor& target = plan_.tensors[list_.reads[number].first_target];
  if (target.dtype == target.source_dtype) return Piece{range.offset, bytes_};
  const std::uint64_t from_bytes = bits_of(target.source_dtype) / 8;
  const std::uint64_t to_bytes = bits_of(target.dtype) / 8;
  converted_.resize(static_cast<std::size_t>(range.size_bytes / from_bytes * to_bytes));
  device::convert_elements(target.source_dtype, bytes_, target.dtype, converted_);
  return Piece{range.offset / from_bytes * to_bytes, converted_};
}

}  // namespace stfs::upload
