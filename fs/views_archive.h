// What `.safetensors/` shows of the model as a whole: `archive.safetensors`, `header.json`, `metadata.json`.
//
// archive.safetensors is the header with more padding, so that the data begin at a multiple of 4096, and then
// the data: nothing is kept in memory, and every tensor lies where its data_offsets say.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "core/archive.h"
#include "fs/views_source.h"

namespace stfs {

class ArchiveView {
 public:
  /// Both must outlive it.
  ArchiveView(const Archive& archive, const ViewSource& source) : archive_(archive), source_(source) {}

  [[nodiscard]] std::uint64_t data_offset() const;
  [[nodiscard]] std::uint64_t size_bytes() const;
  /// @param range  inside the file.
  [[nodiscard]] Result<Bytes> read(ByteRange range) const;
  /// Calls visit(tensor) for those whose bytes lie in a range of the file.
  template <class Visit>
  void for_each_tensor(ByteRange range, const Visit& visit) const;

  /// Of the header's JSON, the padding left out. Reads the padding, the first time.
  [[nodiscard]] Result<std::uint64_t> header_json_bytes() const;
  [[nodiscard]] Result<Bytes> read_header_json(ByteRange range) const;

  /// `__metadata__` as an object; kept once it was asked for.
  [[nodiscard]] const std::string& metadata_json() const;

 private:
  [[nodiscard]] Result<void> append_head(ByteRange part, std::vector<std::byte>& to) const;
  [[nodiscard]] std::uint32_t first_tensor_at(std::uint64_t data_offset) const;

  const Archive& archive_;
  const ViewSource& source_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::optional<std::uint64_t> header_json_bytes_;
  mutable std::optional<std::string> metadata_json_;
};

template <class Visit>
void ArchiveView::for_each_tensor(ByteRange range, const Visit& visit) const {
  const TensorIndex& tensors = archive_.tensors();
  const ByteRange data = range.intersection({data_offset(), size_bytes() - data_offset()});
  if (data.empty()) return;
  const std::uint64_t begin = data.offset - data_offset();
  for (std::uint32_t at = first_tensor_at(begin); at < tensors.size(); ++at) {
    if (tensors[at].data.offset >= begin + data.size_bytes) return;
    if (!tensors[at].data.empty()) visit(at);
  }
}

}  // namespace stfs
