// Reads a tensor's new bytes for `stfs put` from raw bytes, a NumPy file, or another archive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/storage/file.h"
#include "tools/target/target.h"

namespace stfs::tools {

struct SourceName {
  std::string file;                        // path; "-": raw bytes from the stream
  std::optional<std::string> from_tensor;  // if set, the file is an archive and this is its tensor
  bool is_raw = false;                     // read raw bytes, whatever the file's name is
};

class TensorSource {
 public:
  /// Opens the source. Another user's link that leads to a file of a third user is not followed (EACCES): the
  /// users of the archive may not read that file. Checks that the source holds a tensor like `wanted`, as far
  /// as the kind of source shows.
  /// @param in  must outlive the TensorSource.
  static Result<TensorSource> open(const SourceName& name, const Tensor& wanted, std::istream& in);

  /// Call before read(): fails as check_source_readers() does. Standard input has no readers to compare.
  [[nodiscard]] Result<void> check_readers(const Model& target) const;
  /// Returns bytes of the tensor, valid until the next call. The caller must request pieces in ascending
  /// order.
  Result<std::span<const std::byte>> read(ByteRange piece);
  /// The model, if the source is a tensor of another archive; else null.
  [[nodiscard]] const Model* model() const { return model_.get(); }
  /// Called after the last piece. Fails if the source has more bytes.
  Result<void> check_end();

 private:
  Result<void> open_archive(const SourceName& name, const Tensor& wanted);
  Result<void> open_npy(const Tensor& wanted);
  Result<void> check_raw_size(const Tensor& wanted);
  Result<void> read_stream(std::uint64_t offset);

  std::string path_;
  std::istream* in_ = nullptr;  // exactly one of in_, file_ and archive_ is set
  std::unique_ptr<File> file_;
  const ArchiveReader* archive_ = nullptr;  // owned by model_
  std::unique_ptr<Model> model_;
  std::uint64_t data_offset_ = 0;  // of the tensor in the file or in the archive's file
  std::uint64_t due_bytes_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace stfs::tools
