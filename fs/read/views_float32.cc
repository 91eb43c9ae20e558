// Finds the elements that a range of the converted file needs, reads them and converts them.
#include "fs/read/views_float32.h"

#include <cstring>
#include <memory>

#include "core/tensor/float_conversion.h"
#include "core/tensor/npy_writer.h"

namespace stfs {

std::string float32_header(const Tensor& tensor) {
  return npy_header({.descr = "<f4", .shape = {tensor.shape.begin(), tensor.shape.end()}});
}

Result<void> copy_float32(const Tensor& tensor, TensorId id, std::uint64_t offset, const TensorReader& reader,
                          std::span<std::byte> to) {
  constexpr std::uint64_t kByteBits = 8;
  constexpr std::uint64_t kWholeBytes = 8;  // 8 elements fill whole bytes, whatever the dtype
  const std::uint64_t bits = bits_of(tensor.dtype);
  const std::uint64_t first = offset / sizeof(float);
  const std::uint64_t end = (offset + to.size() + sizeof(float) - 1) / sizeof(float);
  const std::uint64_t aligned = first - first % kWholeBytes;
  const std::uint64_t from = aligned * bits / kByteBits;
  // The product cannot overflow: the header's validation has checked the same multiplication.
  const std::uint64_t from_end = (end * bits + kByteBits - 1) / kByteBits;
  // The thread keeps this buffer, because a new buffer is filled with zeros first.
  thread_local std::vector<std::byte> bytes;
  bytes.resize(static_cast<std::size_t>(from_end - from));
  if (auto copied = reader.copy(id, from, bytes); !copied) return copied;
  const std::size_t skipped = static_cast<std::size_t>(offset - first * sizeof(float));
  void* place = to.data();
  std::size_t room_bytes = to.size();
  if (skipped == 0 && to.size() % sizeof(float) == 0 &&
      std::align(alignof(float), to.size(), place, room_bytes) == to.data()) {
    const std::span<float> floats(static_cast<float*>(place), to.size() / sizeof(float));
    return convert_to_float32(tensor.dtype, bytes, floats, first - aligned);
  }
  std::vector<float> converted(static_cast<std::size_t>(end - first));
  if (auto done = convert_to_float32(tensor.dtype, bytes, converted, first - aligned); !done) return done;
  std::memcpy(to.data(), std::as_bytes(std::span(converted)).data() + skipped, to.size());
  return {};
}

}  // namespace stfs
