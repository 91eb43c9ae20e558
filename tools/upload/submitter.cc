// One loop: starts work for a filled slot; if there is none, waits for the oldest work.
#include "tools/upload/submitter.h"

#include <algorithm>
#include <span>

namespace stfs::upload {

Result<std::uint64_t> Submitter::run(const std::atomic<bool>& is_stopped, Work& work) {
  for (auto& queue : queues_) {
    auto opened = parts_.backend.open_queue();
    RETURN_IF_ERROR(opened);
    queue = std::move(*opened);
  }
  for (std::size_t turn = 0; !is_stopped;) {
    if (const auto filled = parts_.ring.next(parts_.device, under_way_.empty())) {
      device::Queue& queue = *queues_[turn];
      RETURN_IF_ERROR(start_copies(queue, *filled));
      const auto mark = queue.mark();
      RETURN_IF_ERROR(mark);
      under_way_.push_back({*filled, turn, *mark});
      turn = (turn + 1) % kQueues;
    } else if (!under_way_.empty()) {
      const UnderWay& oldest = under_way_.front();
      RETURN_IF_ERROR(queues_[oldest.queue]->wait_for(oldest.mark));
    } else {
      break;
    }
    RETURN_IF_ERROR(give_back(work));
  }
  std::uint64_t overflows = 0;
  for (const auto& queue : queues_) {
    const auto counted = queue->overflows();
    RETURN_IF_ERROR(counted);
    overflows += *counted;
  }
  return overflows;
}

Result<void> Submitter::give_back(Work& work) {
  while (!under_way_.empty()) {
    const UnderWay oldest = under_way_.front();
    const auto passed = queues_[oldest.queue]->is_passed(oldest.mark);
    RETURN_IF_ERROR(passed);
    if (!*passed) break;
    under_way_.pop_front();
    if (parts_.ring.release(oldest.filled.slot)) {
      work.advance(parts_.list.transfers[oldest.filled.transfer].source_bytes);
    }
  }
  return {};
}

Result<void> Submitter::start_copies(device::Queue& queue, Ring::Filled filled) {
  const Transfer& transfer = parts_.list.transfers[filled.transfer];
  const auto bytes = parts_.ring.bytes(filled.slot).first(static_cast<std::size_t>(transfer.size_bytes));
  const auto pieces = parts_.list.parts_of(transfer);
  if (!transfer.is_converted) {
    return queue.copy(bytes, parts_.arena, place_of(pieces.front(), target_of(pieces.front())));
  }
  // The device's scratch arena has a place of the same size for each slot of the ring.
  const std::uint64_t begin = parts_.slot_bytes * filled.slot;
  RETURN_IF_ERROR(queue.copy(bytes, *parts_.scratch, begin));
  for (const Part& part : pieces) {
    const PlannedTensor& target = target_of(part);
    auto converted = queue.convert(*parts_.scratch, {begin + part.offset, part.bytes.size_bytes},
                                   target.source_dtype, parts_.arena, place_of(part, target), target.dtype);
    RETURN_IF_ERROR(converted);
  }
  return {};
}

const PlannedTensor& Submitter::target_of(const Part& part) const {
  const auto to = targets_of(parts_.plan, parts_.list.reads[part.read]);
  return *std::ranges::find(to, parts_.device, &PlannedTensor::device);
}

}  // namespace stfs::upload
