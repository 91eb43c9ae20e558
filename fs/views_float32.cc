// Which bytes a range of the converted file is made of.
#include "fs/views_float32.h"

#include <cstring>

#include "core/float_conversion.h"
#include "core/npy_writer.h"

namespace stfs {

std::string float32_header(const Tensor& tensor) {
  return npy_header({.descr = "<f4", .shape = {tensor.shape.begin(), tensor.shape.end()}});
}

Result<Bytes> read_float32(const Tensor& tensor, std::uint32_t position, ByteRange range,
                           const ViewSource& source) {
  constexpr std::uint64_t kByteBits = 8;
  constexpr std::uint64_t kWholeBytes = 8;  // so many elements are whole bytes, whatever the dtype
  const std::uint64_t bits = bits_of(tensor.dtype);
  const std::uint64_t first = range.offset / sizeof(float);
  const std::uint64_t end = (range.end() + sizeof(float) - 1) / sizeof(float);
  const std::uint64_t aligned = first - first % kWholeBytes;
  const std::uint64_t from = aligned * bits / kByteBits;
  // The element count times bits fits: the header's validation has multiplied them.
  const std::uint64_t to = (end * bits + kByteBits - 1) / kByteBits;
  const auto bytes = source.read(position, {from, to - from});
  if (!bytes) return tl::unexpected(bytes.error());
  std::vector<float> converted(static_cast<std::size_t>(end - first));
  auto done = convert_to_float32(tensor.dtype, bytes->span(), converted, first - aligned);
  if (!done) return pass_on(std::move(done));
  const auto all = std::as_bytes(std::span(converted))
                       .subspan(static_cast<std::size_t>(range.offset - first * sizeof(float)),
                                static_cast<std::size_t>(range.size_bytes));
  return Bytes(std::vector<std::byte>(all.begin(), all.end()));
}

}  // namespace stfs
