// `header.json`, `metadata.json` and `archive.safetensors`, of the present version of the model and of
// earlier versions that the kernel still knows.
//
// An edit changes all three files: names, places and sizes. A program that reads a file must not get a mix of
// two versions, so each version has its own files with their own numbers. Names lead to the present files.
// The files of an earlier version stay until the kernel has forgotten them, and until then all tensors of the
// version keep their bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/model/model.h"
#include "fs/read/tensor_reader.h"
#include "fs/tree/inode_table.h"

namespace stfs {

/// The three files of one version.
///
/// For a single archive, archive.safetensors is the archive's header with more padding, followed by the data.
/// The padding makes the data begin at a multiple of 4096. The file is not kept in memory, and every tensor
/// is at its data_offsets. A sharded model has no common header, so a header is made on first use and kept.
class ArchiveView {
 public:
  /// @param reader  must outlive this object.
  ArchiveView(std::shared_ptr<const Model> model, const TensorReader& reader)
      : model_(std::move(model)), reader_(reader) {}

  [[nodiscard]] const Model& model() const { return *model_; }
  /// EFBIG if the model has so many tensors that no reader would accept their header.
  [[nodiscard]] Result<std::uint64_t> size_bytes() const;
  /// True if this view has exactly the bytes of a single archive's file.
  [[nodiscard]] bool is_the_archive() const;
  /// @param range  must be inside the file.
  [[nodiscard]] Result<Bytes> read(ByteRange range) const;
  /// Calls visit(tensor) for each tensor that has bytes in a range of the file. Calls nothing for an empty
  /// range.
  template <class Visit>
  void for_each_tensor(ByteRange range, const Visit& visit) const;

  /// The size of the header's JSON without its padding. The first call reads the padding.
  [[nodiscard]] Result<std::uint64_t> header_json_bytes() const;
  [[nodiscard]] Result<Bytes> read_header_json(ByteRange range) const;
  /// `__metadata__` as a JSON object. The text is made on the first call, and kept.
  [[nodiscard]] const std::string& metadata_json() const;

  /// Keeps the header that the file has now, because an edit is going to change the file. Other calls may run
  /// at the same time.
  Result<void> keep_head();

 private:
  [[nodiscard]] Result<std::uint64_t> data_offset() const;
  /// The header of a sharded model: length and JSON, padded.
  [[nodiscard]] Result<std::string_view> merged_head() const;
  [[nodiscard]] Result<void> append_head(ByteRange part, std::uint64_t data_at,
                                         std::vector<std::byte>& to) const;
  /// Reads the header of a single archive as it is in the file, without the length.
  [[nodiscard]] Result<std::vector<std::byte>> read_header(ByteRange range) const;
  [[nodiscard]] std::uint32_t first_tensor_at(std::uint64_t data_offset) const;

  const std::shared_ptr<const Model> model_;
  const TensorReader& reader_;
  mutable Mutex mutex_;
  mutable std::optional<std::uint64_t> header_json_bytes_ GUARDED_BY(mutex_);
  mutable std::optional<std::string> metadata_json_ GUARDED_BY(mutex_);
  mutable std::optional<Result<std::string>> merged_head_ GUARDED_BY(mutex_);  // never changes once it is set
  // For a single archive: the bytes from the file's beginning.
  std::shared_ptr<const std::vector<std::byte>> kept_head_ GUARDED_BY(mutex_);
};

template <class Visit>
void ArchiveView::for_each_tensor(ByteRange range, const Visit& visit) const {
  const TensorIndex& tensors = model_->tensors();
  const auto data_at = data_offset();
  if (!data_at) return;
  const ByteRange data = range.intersection({*data_at, model_->data_size_bytes()});
  if (data.empty()) return;
  const std::uint64_t begin = data.offset - *data_at;
  for (std::uint32_t at = first_tensor_at(begin); at < tensors.size(); ++at) {
    if (tensors[at].data.offset >= begin + data.size_bytes) return;
    if (!tensors[at].data.empty()) visit(model_->ids().of(at));
  }
}

/// Any thread may call; one thread at a time makes the next version. No function takes a lock while it holds
/// the mutex of this class.
class WholeViews {
 public:
  enum class Part : std::uint8_t { HeaderJson = 3, MetadataJson = 4, Archive = 5 };
  /// The numbers are first + kStride * version + part, below end.
  static constexpr Ino kStride = 8;

  /// @param reader  must outlive this object.
  WholeViews(std::shared_ptr<const Model> model, const TensorReader& reader, Ino first);

  /// The part that a number from `first` on means, of any version; nothing for other numbers.
  [[nodiscard]] static std::optional<Part> part(Ino ino, Ino first) {
    const Ino at = (ino - first) % kStride;
    const bool is_part = at >= 3 && at <= static_cast<Ino>(Part::Archive);
    return is_part ? std::optional(static_cast<Part>(at)) : std::nullopt;
  }
  /// ESTALE, for a file whose version is not kept any more.
  static tl::unexpected<Error> version_has_ended();
  /// The number of the present version's file.
  [[nodiscard]] Ino present(Part part) const;
  /// The view of the file's version; null if the version has ended.
  [[nodiscard]] std::shared_ptr<const ArchiveView> view(Ino ino) const;
  /// ESTALE if the version of the file has ended.
  [[nodiscard]] Result<std::uint64_t> size_bytes(Ino ino) const;
  /// ESTALE as in size_bytes(). @param range  must be inside the file.
  [[nodiscard]] Result<Bytes> read(Ino ino, ByteRange range) const;

  /// Counts a look-up of a file by name, so that the file stays until forget(). An edit may have run since
  /// the look-up.
  /// @return the file's number, or the number of the present version's file if the file's version was
  /// removed.
  Ino note_found(Ino ino);
  /// @return true if this was the last look-up of an earlier version.
  bool forget(Ino ino, std::uint64_t lookups);
  /// The numbers of all archive.safetensors.
  [[nodiscard]] std::vector<Ino> archives() const;
  /// True if an earlier version, which the kernel still knows, has the tensor.
  [[nodiscard]] bool has_before(TensorId tensor) const;

  /// Call before an edit changes the header, which files of the present version show.
  Result<void> prepare_next();
  /// A program that holds the files of an earlier version open keeps its headers and its model in memory,
  /// about three times the size of the headers. If the headers of all mounts of the process have more bytes,
  /// the oldest versions end, and their files fail with ESTALE.
  static constexpr std::uint64_t kMostKeptBytes = std::uint64_t{256} << 20U;
  static constexpr std::size_t kAlwaysKept = 2;  // earlier versions of each archive

  /// The headers of an earlier version that is kept.
  class Kept {
   public:
    Kept() = default;
    Kept(const Kept&) = delete;
    Kept& operator=(const Kept&) = delete;
    ~Kept() { all_bytes -= bytes_; }
    void begin(std::uint64_t bytes) noexcept { all_bytes += bytes_ = bytes; }
    [[nodiscard]] static bool is_too_much() noexcept { return all_bytes > kMostKeptBytes; }

   private:
    static inline std::atomic<std::uint64_t> all_bytes = 0;
    std::uint64_t bytes_ = 0;
  };
  struct Version {
    std::shared_ptr<ArchiveView> view{};
    std::uint64_t lookups = 0;
    std::uint64_t header_bytes = 0;  // of all shards
    Kept kept{};
  };
  using Versions = std::map<std::uint64_t, Version>;
  /// Makes the files of the next model. May throw std::bad_alloc.
  [[nodiscard]] Versions::node_type next(std::shared_ptr<const Model> model) const;
  /// Shows the next files. Only one thread at a time may call.
  void show(Versions::node_type next) noexcept;

 private:
  [[nodiscard]] std::uint64_t version_of(Ino ino) const { return (ino - first_) / kStride; }
  [[nodiscard]] Ino number(std::uint64_t version, Part part) const {
    return first_ + kStride * version + static_cast<Ino>(part);
  }

  const TensorReader& reader_;
  const Ino first_;
  mutable Mutex mutex_;
  Versions versions_ GUARDED_BY(mutex_);  // the last version is the present one
};

}  // namespace stfs
