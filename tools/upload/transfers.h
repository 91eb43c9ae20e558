// A plan cut into pieces of at most a slot: what is read at a time, and where it goes from there.
//
// Neighbours in the arenas share a piece, so that many small tensors cost no more copies than a large one. A
// piece is laid out like the arenas, with the room between tensors that their alignment asks for: one copy
// per device.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/byte_range.h"
#include "core/tensor/slice.h"
#include "tools/upload/plan.h"

namespace stfs::upload {

/// Something that is read once, whatever number of devices it goes to.
struct Read {
  Archive* archive = nullptr;
  std::uint64_t file_offset = 0;  // of the tensor, or of the part of it that lies together
  const Slice* slice = nullptr;   // only where it has to be gathered; in the plan
  std::uint64_t size_bytes = 0;
  std::uint32_t first_target = 0;  // in the plan's tensors: it and its replicas, which follow it
  std::uint32_t targets = 1;
};

/// A range of a Read's bytes, and where they lie in the piece.
struct Part {
  std::uint32_t read = 0;
  ByteRange bytes;
  std::uint64_t offset = 0;
};

struct Transfer {
  std::uint32_t first_part = 0;
  std::uint32_t parts = 0;
  std::uint64_t size_bytes = 0;    // from the first part's begin to the last one's end
  std::uint64_t source_bytes = 0;  // of all parts
  bool is_converted = false;       // each part by itself, from where it lies in the piece
};

struct TransferList {
  std::vector<Read> reads;
  std::vector<Part> parts;
  std::vector<Transfer> transfers;

  [[nodiscard]] std::span<const Part> parts_of(const Transfer& transfer) const {
    return std::span(parts).subspan(transfer.first_part, transfer.parts);
  }
};

/// A tensor and its replicas.
std::span<const PlannedTensor> targets_of(const Plan& plan, const Read& read);
/// Where a part's bytes begin in the arena of one of them, after conversion.
std::uint64_t place_of(const Part& part, const PlannedTensor& target);

/// @param plan        must outlive what is returned, as do its models.
/// @param slot_bytes  a multiple of kTensorAlignment.
TransferList cut_into_transfers(const Plan& plan, std::uint64_t slot_bytes);

}  // namespace stfs::upload
