// What `.safetensors/` shows of the model as a whole: `archive.safetensors`, `header.json`, `metadata.json`.
//
// Of a single archive, archive.safetensors is the header with more padding, so that the data begin at a
// multiple of 4096, and then the data: nothing is kept in memory, and every tensor lies where its
// data_offsets say. Of a sharded model there is no header to pad: one is written when it is first asked for,
// and kept.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "core/model/model.h"
#include "fs/read/views_source.h"

namespace stfs {

class ArchiveView {
 public:
  /// Both must outlive it.
  ArchiveView(const Model& model, const ViewSource& source) : model_(model), source_(source) {}

  /// EFBIG where the model has so many tensors that no reader would take their header.
  [[nodiscard]] Result<std::uint64_t> size_bytes() const;
  /// Byte for byte the file of a single archive.
  [[nodiscard]] bool is_the_archive() const;
  /// @param range  inside the file.
  [[nodiscard]] Result<Bytes> read(ByteRange range) const;
  /// Calls visit(tensor) for those whose bytes lie in a range of the file; none where that has no size.
  template <class Visit>
  void for_each_tensor(ByteRange range, const Visit& visit) const;

  /// Of the header's JSON, the padding left out. Reads the padding, the first time.
  [[nodiscard]] Result<std::uint64_t> header_json_bytes() const;
  [[nodiscard]] Result<Bytes> read_header_json(ByteRange range) const;

  /// `__metadata__` as an object; kept once it was asked for.
  [[nodiscard]] const std::string& metadata_json() const;

 private:
  [[nodiscard]] Result<std::uint64_t> data_offset() const;
  /// The head of a sharded model: length and JSON, padded.
  [[nodiscard]] Result<std::string_view> merged_head() const;
  [[nodiscard]] Result<void> append_head(ByteRange part, std::uint64_t data_at,
                                         std::vector<std::byte>& to) const;
  [[nodiscard]] std::uint32_t first_tensor_at(std::uint64_t data_offset) const;

  const Model& model_;
  const ViewSource& source_;
  mutable std::mutex mutex_;  // guards what follows
  mutable std::optional<std::uint64_t> header_json_bytes_;
  mutable std::optional<std::string> metadata_json_;
  mutable std::optional<Result<std::string>> merged_head_;  // never changed once it is there
};

template <class Visit>
void ArchiveView::for_each_tensor(ByteRange range, const Visit& visit) const {
  const TensorIndex& tensors = model_.tensors();
  const auto data_at = data_offset();
  if (!data_at) return;
  const ByteRange data = range.intersection({*data_at, model_.data_size_bytes()});
  if (data.empty()) return;
  const std::uint64_t begin = data.offset - *data_at;
  for (std::uint32_t at = first_tensor_at(begin); at < tensors.size(); ++at) {
    if (tensors[at].data.offset >= begin + data.size_bytes) return;
    if (!tensors[at].data.empty()) visit(at);
  }
}

}  // namespace stfs
