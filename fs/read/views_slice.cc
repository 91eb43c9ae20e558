// Parses the names of slices, and copies the elements that a slice selects.
#include "fs/read/views_slice.h"

#include <algorithm>

#include "core/tensor/npy_writer.h"
#include "fs/read/cancellation.h"
#include "fs/tree/names.h"

namespace stfs {

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

Result<SliceFile> slice_file(const SliceName& name, TensorId id, const Tensor& tensor) {
  if (!name.is_closed) return fail(ErrorCode::InvalidArgument, EINVAL, "a slice ends with ]");
  auto slice = parse_slice(name.text, tensor.dtype, tensor.shape);
  if (!slice) {
    slice.error().errno_value = EINVAL;
    return pass_on(std::move(slice));
  }
  SliceFile file{.tensor = id, .slice = std::move(*slice), .head = {}};
  if (name.is_npy) file.head = npy_header(npy_form(tensor.dtype, file.slice.shape, file.slice.size_bytes));
  return file;
}

Result<void> copy_slice(const SliceFile& file, std::uint64_t offset, const TensorReader& reader,
                        std::span<std::byte> to) {
  const Slice& slice = file.slice;
  if (slice.is_contiguous()) return reader.copy(file.tensor, slice.first_byte + offset, to);
  // Each element may lie in a page of its own.
  constexpr std::size_t kPieceBytes = std::size_t{16} << 10U;
  return reader.read_parts(file.tensor, [&](const TensorBytes& tensor) -> Result<void> {
    for (std::size_t done = 0; done < to.size();) {
      if (Cancellation::is_requested())
        return fail(ErrorCode::System, EINTR, "the request for a slice was cancelled");
      const auto piece = to.subspan(done, std::min(kPieceBytes, to.size() - done));
      if (auto copied = read_slice(slice, {offset + done, piece.size()}, tensor, piece); !copied)
        return copied;
      done += piece.size();
    }
    return {};
  });
}

}  // namespace stfs
