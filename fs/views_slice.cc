// Names and gathering.
#include "fs/views_slice.h"

#include <cstring>

#include "core/npy_writer.h"

namespace stfs {
namespace {

// Memory is made ready in windows, for two system calls each: what lies closer together than this is cheaper
// had along than asked for apart.
constexpr std::uint64_t kWorthSkippingBytes = 64 << 10;
constexpr std::uint64_t kWindowBytes = 256 << 10;

/// What is had at once around a run of the slice.
struct Window {
  std::uint64_t before_bytes = 0;  // of its beginning
  std::uint64_t after_bytes = 0;   // its own included
};

Window window_of(const Slice& slice) {
  std::uint64_t together = slice.run_bytes;
  bool goes_forward = false;
  bool goes_back = false;
  for (std::size_t level = slice.loops.size(); level-- > 0 && together < kWindowBytes;) {
    const Slice::Loop& loop = slice.loops[level];
    const bool is_back = loop.stride_bytes < 0;
    const std::uint64_t stride = is_back ? 0 - static_cast<std::uint64_t>(loop.stride_bytes)
                                         : static_cast<std::uint64_t>(loop.stride_bytes);
    if (stride > together && stride - together > kWorthSkippingBytes) break;
    (is_back ? goes_back : goes_forward) = true;
    const std::uint64_t turns = std::min(loop.count - 1, kWindowBytes / std::max<std::uint64_t>(stride, 1));
    together += stride * turns;
  }
  together = std::min(together, std::max(kWindowBytes, slice.run_bytes));
  return {.before_bytes = goes_back ? together : 0, .after_bytes = goes_forward ? together : slice.run_bytes};
}

}  // namespace

std::optional<SliceName> split_slice_name(std::string_view file_name) {
  constexpr std::string_view kNpy = ".npy";
  SliceName name;
  const std::size_t bracket = file_name.rfind('[');
  if (bracket == std::string_view::npos) return std::nullopt;
  name.tensor = file_name.substr(0, bracket);
  name.text = file_name.substr(bracket + 1);
  name.is_npy = name.text.ends_with(kNpy);
  if (name.is_npy) name.text.remove_suffix(kNpy.size());
  name.is_closed = name.text.ends_with(']');
  if (name.is_closed) name.text.remove_suffix(1);
  return name;
}

Result<SliceFile> slice_file(const SliceName& name, std::uint32_t position, const Tensor& tensor) {
  if (!name.is_closed) return fail(ErrorCode::InvalidArgument, EINVAL, "a slice ends with ]");
  auto slice = parse_slice(name.text, tensor.dtype, tensor.shape);
  if (!slice) {
    slice.error().errno_value = EINVAL;
    return pass_on(std::move(slice));
  }
  SliceFile file{.tensor = position, .slice = std::move(*slice), .head = {}};
  if (name.is_npy) file.head = npy_header(npy_form(tensor.dtype, file.slice.shape, file.slice.size_bytes));
  return file;
}

Result<Bytes> read_slice(const SliceFile& file, ByteRange range, const ViewSource& source) {
  const Slice& slice = file.slice;
  if (slice.is_contiguous()) {
    return source.read(file.tensor, {slice.first_byte + range.offset, range.size_bytes});
  }
  std::vector<std::byte> gathered(static_cast<std::size_t>(range.size_bytes));
  const Window around = window_of(slice);
  const auto gather_parts = [&](const ViewSource::Part& part) -> Result<void> {
    ByteRange window;
    std::span<const std::byte> bytes;
    std::byte* to = gathered.data();
    Result<void> failed;
    for_each_run(slice, range, [&](ByteRange run) {
      if (!window.contains(run)) {
        const std::uint64_t begin = run.offset - std::min(run.offset, around.before_bytes);
        const std::uint64_t end = run.offset + std::max(around.after_bytes, run.size_bytes);
        window = ByteRange{begin, end - begin}.intersection(slice.extent);
        auto had = part(window);
        if (!had) {
          failed = pass_on(std::move(had));
          return false;
        }
        bytes = *had;
      }
      std::memcpy(to, bytes.data() + (run.offset - window.offset), static_cast<std::size_t>(run.size_bytes));
      to += run.size_bytes;
      return true;
    });
    return failed;
  };
  if (auto read = source.read_parts(file.tensor, gather_parts); !read) return pass_on(std::move(read));
  return Bytes(std::move(gathered));
}

}  // namespace stfs
