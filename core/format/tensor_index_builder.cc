#include "core/format/tensor_index_builder.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace stfs {

void TensorIndex::Builder::begin_tensor(std::string_view name, std::uint32_t key_at) {
  Entry entry;
  entry.name_at = static_cast<std::uint32_t>(index_.names_.size());
  entry.name_size = static_cast<std::uint32_t>(name.size());
  entry.key_at = key_at;
  index_.names_.append(name.data(), name.size());
  index_.entries_.push_back(entry);
}

void TensorIndex::Builder::begin_shape() {
  index_.entries_.back().shape_at = static_cast<std::uint32_t>(index_.dimensions_.size());
}

void TensorIndex::Builder::add_dimension(std::uint64_t size) {
  index_.dimensions_.push_back(size);
  ++index_.entries_.back().rank;
}

void TensorIndex::Builder::set_data_offsets(std::uint64_t begin, std::uint64_t end) {
  index_.entries_.back().begin = begin;
  index_.entries_.back().end = end;
}

void TensorIndex::Builder::add(const Tensor& tensor, std::uint32_t key_at) {
  begin_tensor(tensor.name, key_at);
  set_dtype(tensor.dtype);
  begin_shape();
  for (const std::uint64_t size : tensor.shape) add_dimension(size);
  set_data_offsets(tensor.data.offset, tensor.data.end());
}

std::string_view TensorIndex::Builder::name() const {
  return index_.name_at(index_.entries_[index_.entries_.size() - 1]);
}

tl::expected<TensorIndex, DuplicateName> TensorIndex::Builder::build() && {
  const auto before = [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.key_at) < std::tie(b.begin, b.end, b.key_at);
  };
  // Most writers list the tensors in order of offset already.
  if (!std::is_sorted(index_.entries_.begin(), index_.entries_.end(), before)) {
    std::sort(index_.entries_.begin(), index_.entries_.end(), before);
  }
  index_.names_.trim();
  index_.dimensions_.trim();
  index_.entries_.trim();
  if (const auto twins = index_.index_names()) {
    const Entry& one = index_.entries_[twins->first];
    const Entry& other = index_.entries_[twins->second];
    return tl::unexpected(DuplicateName{std::string(index_.name_at(one)), std::min(one.key_at, other.key_at),
                                        std::max(one.key_at, other.key_at)});
  }
  return std::move(index_);
}

}  // namespace stfs
