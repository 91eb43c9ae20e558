// Groups replicas, merges neighbours, and cuts the result into pieces.
#include "tools/upload/transfers.h"

#include <algorithm>

#include "tools/device/arena.h"

namespace stfs::upload {
namespace {

using device::aligned_for_tensor;

Read read_of(const Plan& plan, std::uint32_t target) {
  const PlannedTensor& tensor = plan.tensors[target];
  const bool is_gathered = tensor.slice && !tensor.slice->is_contiguous();
  return {.archive = &plan.archive_of(tensor),
          .file_offset = is_gathered ? plan.models[tensor.model]->file_range(tensor.tensor).offset
                                     : plan.file_offset(tensor),
          .slice = is_gathered ? &*tensor.slice : nullptr,
          .size_bytes = tensor.source_bytes,
          .first_target = target,
          .targets = 1};
}

class Cutter {
 public:
  Cutter(const Plan& plan, std::uint64_t slot_bytes) : plan_(plan), slot_bytes_(slot_bytes) {}

  TransferList run() {
    for (std::uint32_t target = 0; target < plan_.tensors.size();) {
      Read read = read_of(plan_, target);
      const auto is_replica = [&](std::uint32_t other) {
        return other < plan_.tensors.size() && plan_.tensors[other].model == plan_.tensors[target].model &&
               plan_.tensors[other].tensor == plan_.tensors[target].tensor;
      };
      while (is_replica(target + read.targets)) ++read.targets;
      target += read.targets;
      list_.reads.push_back(read);
      append();
    }
    finish();
    return std::move(list_);
  }

 private:
  /// Cuts the last Read into parts and appends them.
  void append() {
    const auto at = static_cast<std::uint32_t>(list_.reads.size() - 1);
    const Read& read = list_.reads[at];
    if (read.size_bytes == 0) return;
    const bool is_converted = is_conversion(read);
    const std::uint64_t begin = aligned_for_tensor(open_.size_bytes);
    if (open_.parts > 0 && (is_converted != open_.is_converted || !continues(read) || begin >= slot_bytes_))
      finish();
    open_.is_converted = is_converted;
    for (std::uint64_t done = 0; done < read.size_bytes;) {
      const std::uint64_t offset = aligned_for_tensor(open_.size_bytes);
      const std::uint64_t size_bytes = std::min(read.size_bytes - done, slot_bytes_ - offset);
      list_.parts.push_back({at, {done, size_bytes}, offset});
      open_.parts += 1;
      open_.size_bytes = offset + size_bytes;
      open_.source_bytes += size_bytes;
      done += size_bytes;
      if (done < read.size_bytes) {
        finish();
        open_.is_converted = is_converted;
      }
    }
  }

  [[nodiscard]] bool is_conversion(const Read& read) const {
    const PlannedTensor& tensor = plan_.tensors[read.first_target];
    return tensor.dtype != tensor.source_dtype;
  }

  /// Returns true if a Read goes to the same devices as the last part and directly follows that part on each
  /// of them. If the parts are converted one by one, their places do not matter.
  [[nodiscard]] bool continues(const Read& read) const {
    const Read& before = list_.reads[list_.parts.back().read];
    if (read.targets != before.targets) return false;
    for (std::uint32_t at = 0; at < read.targets; ++at) {
      const PlannedTensor& last = plan_.tensors[before.first_target + at];
      const PlannedTensor& next = plan_.tensors[read.first_target + at];
      if (last.device != next.device) return false;
      if (!open_.is_converted && next.place.offset != aligned_for_tensor(last.place.end())) return false;
    }
    return true;
  }

  void finish() {
    if (open_.parts > 0) list_.transfers.push_back(open_);
    open_ = {};
    open_.first_part = static_cast<std::uint32_t>(list_.parts.size());
  }

  const Plan& plan_;
  std::uint64_t slot_bytes_;
  TransferList list_;
  Transfer open_;
};

}  // namespace

TransferList cut_into_transfers(const Plan& plan, std::uint64_t slot_bytes) {
  return Cutter(plan, slot_bytes).run();
}

std::span<const PlannedTensor> targets_of(const Plan& plan, const Read& read) {
  return std::span(plan.tensors).subspan(read.first_target, read.targets);
}

std::uint64_t place_of(const Part& part, const PlannedTensor& target) {
  if (target.dtype == target.source_dtype) return target.place.offset + part.bytes.offset;
  return target.place.offset +
         part.bytes.offset / (bits_of(target.source_dtype) / 8) * (bits_of(target.dtype) / 8);
}

}  // namespace stfs::upload
