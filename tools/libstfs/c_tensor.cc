// Handles of tensors: slices, addresses, bytes.
#include <fmt/format.h>

#include <algorithm>

#include "tools/libstfs/c_error.h"
#include "tools/libstfs/c_struct.h"
#include "tools/libstfs/handles.h"
#include "tools/text/printable.h"

using namespace stfs;
using namespace stfs::interface;

namespace {

/// From this size on a private map is cheaper than a copy. Small tensors use no map, because a process may
/// have only 65,530 maps.
constexpr std::uint64_t kWorthMappingBytes = 64 << 10;

/// Returns the tensor with its elements packed in other memory. Its bytes are no longer in the archive, but
/// its info still names the archive.
stfs_tensor* derive_elsewhere(const stfs_tensor& from, std::shared_ptr<TensorMemory> memory) {
  return new stfs_tensor{from.name, from.archive, from.offset + from.view.first_byte(), from.view.packed(),
                         std::move(memory)};
}

Result<stfs_tensor*> copy(const stfs_tensor& tensor) {
  auto memory = copy_of(*tensor.memory, tensor.view.slice());
  if (!memory) return tl::unexpected(std::move(memory).error().within(tools::printable_name(tensor.name)));
  return derive_elsewhere(tensor, std::move(*memory));
}

}  // namespace

stfs_tensor* stfs_tensor_open(const stfs_model* model, std::uint64_t position, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_tensor*> {
    const auto opened = model->opened();
    RETURN_IF_ERROR(opened);
    const OpenedModel& now = **opened;
    if (position >= now.count()) return refuse(fmt::format("stfs_tensor_open: no tensor {}", position));
    const std::uint32_t at = now.tensor(position);
    const Tensor tensor = now.model->tensors()[at];
    return new stfs_tensor{std::string(tensor.name), now.model->archive_of(at).path().string(),
                           now.model->file_range(at).offset,
                           StridedView::whole(tensor.dtype, tensor.shape, tensor.data.size_bytes),
                           archive_memory(now.model, now.maps, at)};
  });
}

void stfs_tensor_close(stfs_tensor* tensor) {
  delete tensor;
}

stfs_tensor* stfs_tensor_retain(const stfs_tensor* tensor, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_tensor*> {
    const MutexLock lock(tensor->mutex);
    return new stfs_tensor{tensor->name, tensor->archive, tensor->offset,
                           tensor->view, tensor->memory,  tensor->gathered};
  });
}

stfs_tensor* stfs_tensor_slice(const stfs_tensor* tensor, const char* slice, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_tensor*> {
    auto view = tensor->view.sliced(slice);
    if (!view) {
      return tl::unexpected(
          std::move(view).error().within(fmt::format("{}[{}]", tools::printable_name(tensor->name), slice)));
    }
    return new stfs_tensor{tensor->name, tensor->archive, tensor->offset, std::move(*view), tensor->memory};
  });
}

int stfs_tensor_describe(const stfs_tensor* tensor, stfs_tensor_info* info, stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const StridedView& view = tensor->view;
    stfs_tensor_info known{};
    known.name = {tensor->name.data(), tensor->name.size()};
    known.dtype = static_cast<std::int32_t>(view.dtype());
    known.rank = static_cast<std::uint32_t>(view.shape().size());
    known.shape = view.shape().data();
    const bool is_strided = tensor->is_in_place() && !view.strides_bytes().empty();
    known.strides_bytes = is_strided ? view.strides_bytes().data() : nullptr;
    known.size_bytes = view.size_bytes();
    known.archive = tensor->archive.c_str();
    known.offset = tensor->offset + view.first_byte();
    const device::Device device = tensor->memory->device();
    known.device_kind = device.kind == device::Device::Kind::Cpu ? STFS_CPU : STFS_CUDA;
    known.device_index = device.index;
    if (tensor->is_in_place()) {
      if (tensor->memory->is_mapped()) known.flags |= STFS_MAPPED;
      if (tensor->memory->is_writable()) known.flags |= STFS_WRITABLE;
    }
    return give_struct(known, info);
  });
}

void* stfs_tensor_data(const stfs_tensor* tensor, stfs_error* error) {
  return answer(error, [&]() -> Result<void*> {
    const auto named = [&](Error why) {
      return tl::unexpected(std::move(why).within(tools::printable_name(tensor->name)));
    };
    if (tensor->is_in_place()) {
      if (auto there = tensor->memory->check(); !there) return named(std::move(there).error());
      return static_cast<void*>(tensor->memory->address() + tensor->view.first_byte());
    }
    const MutexLock lock(tensor->mutex);
    if (!tensor->gathered) {
      auto gathered = copy_of(*tensor->memory, tensor->view.slice());
      if (!gathered) return named(std::move(gathered).error());
      tensor->gathered = std::move(*gathered);
    }
    return static_cast<void*>(tensor->gathered->address());
  });
}

int stfs_tensor_read(const stfs_tensor* tensor, std::uint64_t offset, void* to, std::size_t size_bytes,
                     stfs_error* error) {
  return answer(error, [&]() -> Result<void> {
    const auto range = ByteRange::checked(offset, size_bytes);
    if (!range || range->end() > tensor->view.size_bytes()) {
      return refuse(fmt::format("{}: {} bytes from byte {} on are more than its {}",
                                tools::printable_name(tensor->name), size_bytes, offset,
                                tensor->view.size_bytes()));
    }
    if (range->empty()) return {};
    auto read = tensor->memory->read(tensor->view.slice(), *range, {static_cast<std::byte*>(to), size_bytes});
    if (!read) return tl::unexpected(std::move(read).error().within(tools::printable_name(tensor->name)));
    return {};
  });
}

stfs_tensor* stfs_tensor_copy(const stfs_tensor* tensor, stfs_error* error) {
  return answer(error, [&] { return copy(*tensor); });
}

stfs_tensor* stfs_tensor_private(const stfs_tensor* tensor, stfs_error* error) {
  return answer(error, [&]() -> Result<stfs_tensor*> {
    const StridedView& view = tensor->view;
    if (!view.is_packed() || view.size_bytes() < kWorthMappingBytes) return copy(*tensor);
    // A range that is beyond the end of the file cannot be mapped.
    RETURN_IF_ERROR(tensor->memory->check());
    auto memory = tensor->memory->map_private({view.first_byte(), view.size_bytes()});
    RETURN_IF_ERROR(memory);
    if (!*memory) return copy(*tensor);
    return derive_elsewhere(*tensor, std::move(*memory));
  });
}
