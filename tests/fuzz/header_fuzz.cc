// libFuzzer on the reader of headers: no input may crash it, hang it, or be taken for an archive that
// breaks the format's promises. Built by clang with -DSTFS_FUZZ=ON; the corpus is tests/support/corpus.py's:
//
//   python3 tests/support/corpus.py build/corpus && build/fuzz/tests/header_fuzz build/corpus
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/header.h"

namespace {

void require(bool promise) {
  if (!promise) std::abort();
}

void check(const stfs::Header& header, std::uint64_t data_size_bytes) {
  std::uint64_t covered_bytes = 0;
  for (std::uint32_t i = 0; i < header.tensors.size(); ++i) {
    const stfs::Tensor tensor = header.tensors[i];
    require(tensor.data.offset == covered_bytes);
    require(stfs::data_size_bytes(tensor.dtype, tensor.shape) == tensor.data.size_bytes);
    require(header.tensors.find(tensor.name) == i);
    covered_bytes = tensor.data.end();
  }
  require(covered_bytes == data_size_bytes);
}

// What was read can be written, and read again.
void check_again(const stfs::Header& header, std::uint64_t data_size_bytes) {
  std::vector<stfs::TensorSpec> tensors;
  for (std::uint32_t i = 0; i < header.tensors.size(); ++i) {
    const stfs::Tensor tensor = header.tensors[i];
    tensors.push_back({std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}});
  }
  const auto written = stfs::format_header(tensors, header.metadata, 8, 0);
  require(written.has_value());
  const auto again =
      stfs::parse_header(std::string_view(*written).substr(stfs::kHeaderLengthBytes), data_size_bytes);
  require(again && again->tensors.size() == header.tensors.size() && again->metadata == header.metadata);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto length = stfs::header_length(file.first(std::min<std::size_t>(8, size)), size);
  if (!length) return 0;
  const std::string_view json(reinterpret_cast<const char*>(data) + stfs::kHeaderLengthBytes, *length);
  const std::uint64_t data_size_bytes = size - stfs::kHeaderLengthBytes - *length;
  const auto header = stfs::parse_header(json, data_size_bytes);
  if (!header) {
    require(!header.error().message.empty() && header.error().errno_value == EINVAL);
    return 0;
  }
  check(*header, data_size_bytes);
  check_again(*header, data_size_bytes);
  return 0;
}
