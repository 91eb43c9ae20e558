#include "fs/tree/view_names.h"

#include "core/tensor/float_conversion.h"
#include "core/tensor/npy.h"
#include "fs/tree/names.h"
#include "fs/tree/snapshot.h"

namespace stfs {
namespace {

bool fits(std::string_view flat_name) {
  return flat_name.size() + kNpySuffix.size() <= kMaxFileNameBytes;
}

/// Cuts a name as told_apart() does, but leaves room for `.npy`, and appends it.
std::string cut_name(std::string_view flat_name, std::string_view seed) {
  return told_apart(flat_name, seed, kMaxFileNameBytes - kNpySuffix.size()) + std::string(kNpySuffix);
}

}  // namespace

ViewNames::ViewNames(const Snapshot& snapshot) : snapshot_(snapshot) {
  const TensorIndex& tensors = snapshot.model->tensors();
  const TensorIds& ids = snapshot.model->ids();
  bool is_each_in_npy = true;
  for (std::uint32_t position = 0; position < tensors.size(); ++position) {
    const Tensor tensor = tensors[position];
    is_each_in_npy = is_each_in_npy && has_npy(tensor);
    if (has_float32(tensor)) floating_.push_back(ids.of(position));
  }
  if (is_each_in_npy) return;
  in_npy_.emplace();
  for (std::uint32_t position = 0; position < tensors.size(); ++position) {
    if (has_npy(tensors[position])) in_npy_->push_back(ids.of(position));
  }
}

bool ViewNames::has_npy(const Tensor& tensor) {
  return tensor.shape.size() <= kMaxNpyRank;
}

bool ViewNames::has_float32(const Tensor& tensor) {
  return is_floating(tensor.dtype) && has_npy(tensor);
}

const ViewNames::Long& ViewNames::long_names() const {
  std::call_once(has_long_, [this] {
    for (std::uint32_t position = 0; position < snapshot_.model->tensors().size(); ++position) {
      const TensorId tensor = snapshot_.model->ids().of(position);
      const std::string_view flat_name = snapshot_.flat().file_name(InodeTable::ino_of_tensor(tensor));
      if (fits(flat_name)) continue;
      std::string seed(snapshot_.model->tensors()[position].name);
      std::string name = cut_name(flat_name, seed);
      // Another tensor may happen to have this name.
      const auto is_taken = [&] {
        return long_.tensors.contains(name) || tensor_of_flat(*without_npy_suffix(name)).has_value();
      };
      while (is_taken()) name = cut_name(flat_name, seed += '~');
      long_.names[tensor] = name;
      long_.tensors[std::move(name)] = tensor;
    }
  });
  return long_;
}

std::optional<TensorId> ViewNames::tensor_of_flat(std::string_view file_name) const {
  const auto ino = snapshot_.flat().find(kRootIno, file_name);
  if (!ino) return std::nullopt;
  return InodeTable::tensor(*ino);
}

std::optional<TensorId> ViewNames::tensor_of_npy(std::string_view file_name) const {
  const auto stem = without_npy_suffix(file_name);
  if (!stem) return std::nullopt;
  if (fits(*stem)) {
    if (const auto tensor = tensor_of_flat(*stem)) return tensor;
  }
  // A cut name has the greatest length, less up to 3 bytes if the cut fell inside a character or a %XX.
  constexpr std::size_t kLongestRest = 3;
  if (file_name.size() + kLongestRest < kMaxFileNameBytes) return std::nullopt;
  const auto& tensors = long_names().tensors;
  const auto found = tensors.find(std::string(file_name));
  if (found == tensors.end()) return std::nullopt;
  return found->second;
}

std::string ViewNames::npy_name(TensorId tensor) const {
  const std::string_view name = snapshot_.flat().file_name(InodeTable::ino_of_tensor(tensor));
  return fits(name) ? std::string(name) + std::string(kNpySuffix) : long_names().names.at(tensor);
}

}  // namespace stfs
