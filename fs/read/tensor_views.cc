#include "fs/read/tensor_views.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "core/base/cancellation.h"
#include "core/tensor/float_conversion.h"
#include "core/tensor/npy_writer.h"
#include "fs/tree/names.h"

namespace stfs {

TensorView TensorView::npy(TensorId id, const Tensor& tensor) {
  TensorView view(id, tensor.dtype);
  view.head_ = npy_header(npy_form(tensor.dtype, tensor.shape, tensor.data.size_bytes));
  view.body_bytes_ = tensor.data.size_bytes;
  return view;
}

TensorView TensorView::float32(TensorId id, const Tensor& tensor) {
  TensorView view(id, tensor.dtype);
  view.is_float32_ = true;
  view.head_ = npy_header({.descr = "<f4", .shape = {tensor.shape.begin(), tensor.shape.end()}});
  view.body_bytes_ = element_count(tensor.shape) * sizeof(float);
  return view;
}

std::optional<SliceName> split_slice_name(std::string_view file_name) {
  SliceName name;
  const std::size_t bracket = file_name.rfind('[');
  if (bracket == std::string_view::npos) return std::nullopt;
  name.tensor = file_name.substr(0, bracket);
  name.text = file_name.substr(bracket + 1);
  const auto stem = without_npy_suffix(name.text);
  name.is_npy = stem.has_value();
  name.text = stem.value_or(name.text);
  name.is_closed = name.text.ends_with(']');
  if (name.is_closed) name.text.remove_suffix(1);
  return name;
}

Result<TensorView> TensorView::slice(const SliceName& name, TensorId id, const Tensor& tensor) {
  if (!name.is_closed) return fail(ErrorCode::InvalidArgument, EINVAL, "a slice ends with ]");
  auto slice = parse_slice(name.text, tensor.dtype, tensor.shape);
  if (!slice) {
    slice.error().errno_value = EINVAL;
    return pass_on(std::move(slice));
  }
  TensorView view(id, tensor.dtype);
  view.slice_ = std::move(*slice);
  view.body_bytes_ = view.slice_.size_bytes;
  if (name.is_npy) view.head_ = npy_header(npy_form(tensor.dtype, view.slice_.shape, view.body_bytes_));
  return view;
}

Result<Bytes> TensorView::read(ByteRange range, const TensorReader& reader) const {
  const ByteRange in_head = range.intersection({0, head_.size()});
  if (in_head.empty() && !is_float32_ && slice_.is_contiguous())
    return reader.read(tensor_, {slice_.first_byte + range.offset - head_.size(), range.size_bytes});
  std::vector<std::byte> bytes = Bytes::buffer(range.size_bytes);
  if (!in_head.empty()) {
    const auto from = std::as_bytes(std::span(head_)).subspan(static_cast<std::size_t>(in_head.offset));
    std::ranges::copy(from.first(static_cast<std::size_t>(in_head.size_bytes)), bytes.begin());
  }
  const auto body = std::span(bytes).subspan(static_cast<std::size_t>(in_head.size_bytes));
  if (!body.empty()) {
    RETURN_IF_ERROR(copy(range.offset + in_head.size_bytes - head_.size(), reader, body));
  }
  return Bytes(std::move(bytes));
}

Result<void> TensorView::copy(std::uint64_t offset, const TensorReader& reader,
                              std::span<std::byte> to) const {
  reader.recent_reads().note(tensor_, to.size());
  if (is_float32_) return copy_float32(offset, reader, to);
  return slice_.is_contiguous() ? reader.copy(tensor_, slice_.first_byte + offset, to)
                                : copy_slice(offset, reader, to);
}

Result<void> TensorView::copy_slice(std::uint64_t offset, const TensorReader& reader,
                                    std::span<std::byte> to) const {
  // Each element may be in another page.
  constexpr std::size_t kPieceBytes = std::size_t{16} << 10U;
  return reader.read_parts(tensor_, [&](const TensorBytes& tensor) -> Result<void> {
    for (std::size_t done = 0; done < to.size();) {
      if (Cancellation::is_requested())
        return fail(ErrorCode::System, EINTR, "the request for a slice was cancelled");
      const auto piece = to.subspan(done, std::min(kPieceBytes, to.size() - done));
      if (auto copied = read_slice(slice_, {offset + done, piece.size()}, tensor, piece); !copied)
        return copied;
      done += piece.size();
    }
    return {};
  });
}

Result<void> TensorView::copy_float32(std::uint64_t offset, const TensorReader& reader,
                                      std::span<std::byte> to) const {
  constexpr std::uint64_t kByteBits = 8;
  constexpr std::uint64_t kWholeBytes = 8;  // 8 elements fill whole bytes, whatever the dtype
  const std::uint64_t bits = bits_of(dtype_);
  const std::uint64_t first = offset / sizeof(float);
  const std::uint64_t end = (offset + to.size() + sizeof(float) - 1) / sizeof(float);
  const std::uint64_t aligned = first - first % kWholeBytes;
  const std::uint64_t from = aligned * bits / kByteBits;
  // The product cannot overflow: the header's validation has checked the same multiplication.
  const std::uint64_t from_end = (end * bits + kByteBits - 1) / kByteBits;
  // The thread keeps this buffer, because a new buffer is filled with zeros first.
  thread_local std::vector<std::byte> bytes;
  bytes.resize(static_cast<std::size_t>(from_end - from));
  RETURN_IF_ERROR(reader.copy(tensor_, from, bytes));
  const std::size_t skipped = static_cast<std::size_t>(offset - first * sizeof(float));
  void* place = to.data();
  std::size_t room_bytes = to.size();
  if (skipped == 0 && to.size() % sizeof(float) == 0 &&
      std::align(alignof(float), to.size(), place, room_bytes) == to.data()) {
    const std::span<float> floats(static_cast<float*>(place), to.size() / sizeof(float));
    return convert_to_float32(dtype_, bytes, floats, first - aligned);
  }
  std::vector<float> converted(static_cast<std::size_t>(end - first));
  RETURN_IF_ERROR(convert_to_float32(dtype_, bytes, converted, first - aligned));
  std::memcpy(to.data(), std::as_bytes(std::span(converted)).data() + skipped, to.size());
  return {};
}

}  // namespace stfs
