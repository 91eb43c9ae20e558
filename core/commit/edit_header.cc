// Empty tensors come first, then tensors and fillers in the order of their bytes.
#include "core/commit/edit_header.h"

#include <fmt/format.h>

#include <utility>

#include "core/format/header.h"

namespace stfs {

Result<std::uint64_t> data_offset_with_room(std::uint64_t least_bytes, std::uint64_t room_bytes) {
  constexpr std::uint64_t kPageBytes = 4096;
  const std::uint64_t data_at = (least_bytes + room_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (data_at - kHeaderLengthBytes <= kMaxHeaderBytes) return data_at;
  return fail(ErrorCode::HeaderTooLarge, EFBIG,
              fmt::format("a header of {} bytes with its padding, at most {} are allowed",
                          data_at - kHeaderLengthBytes, kMaxHeaderBytes));
}

Result<EditHeader> format_edit_header(const ArchiveEdit& edit, std::span<const TensorAt> placed,
                                      std::uint64_t data_at, std::uint64_t end) {
  std::vector<TensorSpec> specs;
  specs.reserve(edit.tensors.size() + 8);
  const auto add = [&](std::uint32_t at) {
    specs.push_back({edit.tensors[at].name, edit.tensors[at].dtype, edit.tensors[at].shape});
  };
  std::vector<bool> has_bytes(edit.tensors.size());
  for (const TensorAt& tensor : placed) has_bytes[tensor.tensor] = true;
  for (std::uint32_t at = 0; at < has_bytes.size(); ++at) {
    if (!has_bytes[at]) add(at);
  }
  std::vector<ByteRange> fillers;
  std::uint64_t covered = data_at;
  const auto fill_up_to = [&](std::uint64_t next) {
    if (covered >= next) return;
    specs.push_back({fmt::format("{}{}", kFillerPrefix, fillers.size()), Dtype::U8, {next - covered}});
    fillers.push_back({covered, next - covered});
  };
  for (const TensorAt& tensor : placed) {
    fill_up_to(tensor.range.offset);
    add(tensor.tensor);
    covered = tensor.range.end();
  }
  fill_up_to(end);
  auto json = format_header_json(specs, edit.metadata);
  if (!json) return pass_on(std::move(json));
  return EditHeader{std::move(*json), std::move(fillers)};
}

}  // namespace stfs
