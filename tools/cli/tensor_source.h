// Where `stfs put` takes a tensor's new bytes from: raw bytes, a NumPy file, or another archive.
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
  std::string file;                        // "-": raw bytes of the stream
  std::optional<std::string> from_tensor;  // the file is an archive, and this its tensor
  bool is_raw = false;                     // whatever its name says
};

class TensorSource {
 public:
  /// Opens it and checks that what it holds, as far as it tells, is a tensor like `wanted`.
  /// @param in  must outlive it.
  static Result<TensorSource> open(const SourceName& name, const Tensor& wanted, std::istream& in);

  /// Bytes of the tensor, valid until the next call. Pieces must be asked for in ascending order.
  Result<std::span<const std::byte>> read(ByteRange piece);
  /// Where it is a tensor of one; null otherwise.
  [[nodiscard]] const Model* model() const { return model_.get(); }
  /// After the last piece: nothing more must come.
  Result<void> check_end();

 private:
  Result<void> open_archive(const SourceName& name, const Tensor& wanted);
  Result<void> open_npy(const Tensor& wanted);
  Result<void> check_raw_size(const Tensor& wanted);
  Result<void> read_stream(std::uint64_t offset);

  std::string path_;
  std::istream* in_ = nullptr;  // one of these three
  std::unique_ptr<File> file_;
  const Archive* archive_ = nullptr;  // of the model
  std::unique_ptr<Model> model_;
  std::uint64_t data_offset_ = 0;  // in the file or the archive's file
  std::uint64_t due_bytes_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace stfs::tools
