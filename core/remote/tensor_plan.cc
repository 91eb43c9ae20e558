#include "core/remote/tensor_plan.h"

#include <algorithm>

#include "core/format/header.h"

namespace stfs {

TensorPlan::TensorPlan(std::string_view json, std::uint64_t file_size_bytes) : begins_{0} {
  const std::uint64_t data_at = kHeaderLengthBytes + json.size();
  const auto header = parse_header(json, file_size_bytes - std::min(file_size_bytes, data_at));
  if (header) {
    begins_.reserve(header->tensors.size() + 2);
    for (std::uint32_t at = 0; at < header->tensors.size(); ++at)
      begins_.push_back(data_at + header->tensors[at].data.offset);
    std::ranges::sort(begins_);
  }
  begins_.push_back(file_size_bytes);
  begins_.erase(std::unique(begins_.begin(), begins_.end()), begins_.end());
}

std::size_t TensorPlan::find(std::uint64_t offset) const {
  const auto after = std::ranges::upper_bound(begins_, offset);
  const auto at = static_cast<std::size_t>(after - begins_.begin()) - 1;
  return std::min(at, begins_.size() - 2);
}

ByteRange TensorPlan::around(ByteRange read) {
  const MutexLock lock(mutex_);
  // The kernel's reads of one program may come in another order.
  constexpr std::uint64_t kNear = 1 << 20;
  const bool is_in_order = read.offset <= end_ + kNear && end_ <= read.offset + kNear;
  ahead_bytes_ = is_in_order ? std::min(ahead_bytes_ * 2, kSmallBytes) : kLeastBytes;
  const std::size_t first = find(read.offset);
  const std::size_t last = find(read.end() - 1);
  is_reading_on_ = is_in_order && (is_reading_on_ || first == tensor_ + 1);
  tensor_ = last;
  end_ = read.end();

  ByteRange wanted = read;
  if (tensor(first).size_bytes <= kSmallBytes)
    wanted = {tensor(first).offset, read.end() - tensor(first).offset};
  const ByteRange rest = tensor(last);
  std::uint64_t end = rest.size_bytes <= kSmallBytes ? rest.end() : read.end() + ahead_bytes_;
  end = std::min(end, rest.end());
  if (is_reading_on_) end = std::max(end, read.end() + ahead_bytes_);
  wanted.size_bytes = std::min(end, begins_.back()) - wanted.offset;
  return wanted;
}

}  // namespace stfs
