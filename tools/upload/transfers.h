// Cuts a plan into pieces of at most one slot. Each piece is read once and then copied to its devices.
//
// Neighbours in the arenas share a piece, so many small tensors need as few copies as one large tensor. A
// piece has the layout of the arenas, including the padding between tensors that their alignment requires.
// Each device therefore needs one copy for each piece.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/archive/archive_reader.h"
#include "core/base/byte_range.h"
#include "core/tensor/slice.h"
#include "tools/upload/plan.h"

namespace stfs::upload {

/// A range that is read once, for any number of devices.
struct Read {
  const ArchiveReader* archive = nullptr;
  std::uint64_t file_offset = 0;  // of the tensor, or of its contiguous part
  const Slice* slice = nullptr;   // owned by the plan; null if no gathering is needed
  std::uint64_t size_bytes = 0;
  std::uint32_t first_target = 0;  // index into the plan's tensors; the replicas follow the tensor there
  std::uint32_t targets = 1;
};

/// A range of a Read's bytes, and its offset in the piece.
struct Part {
  std::uint32_t read = 0;
  ByteRange bytes;
  std::uint64_t offset = 0;
};

struct Transfer {
  std::uint32_t first_part = 0;
  std::uint32_t parts = 0;
  std::uint64_t size_bytes = 0;    // from the begin of the first part to the end of the last one
  std::uint64_t source_bytes = 0;  // of all parts
  bool is_converted = false;       // each part is converted separately, from its place in the piece
};

struct TransferList {
  std::vector<Read> reads;
  std::vector<Part> parts;
  std::vector<Transfer> transfers;

  [[nodiscard]] std::span<const Part> parts_of(const Transfer& transfer) const {
    return std::span(parts).subspan(transfer.first_part, transfer.parts);
  }
};

/// Returns a tensor and its replicas.
std::span<const PlannedTensor> targets_of(const Plan& plan, const Read& read);
/// Returns the place where a part's bytes begin in the arena of `target`, after conversion.
std::uint64_t place_of(const Part& part, const PlannedTensor& target);

/// @param plan        must outlive the result, as must its models.
/// @param slot_bytes  a multiple of kTensorAlignment.
TransferList cut_into_transfers(const Plan& plan, std::uint64_t slot_bytes);

}  // namespace stfs::upload
