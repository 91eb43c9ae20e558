// A model: one archive, or all shards of an index, as one set of tensors.
//
// The tensors of a sharded model lie back to back, in order of shard and then of offset, in an archive that
// exists nowhere (fs/read/views_archive.h shows it): that is what their Tensor::data are ranges of. The
// format allows no hole between tensors, so only the whole data section begins at a page, not each shard's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/error.h"
#include "core/format/tensor_index.h"
#include "core/model/model_agreement.h"
#include "core/model/model_shards.h"

namespace stfs {

struct ModelOptions {
  Access access = Access::ReadOnly;
  /// Refuse a model whose index and shards disagree, with all that they disagree on in the error.
  bool is_strict = false;
  Storage* storage = &system_storage();  // must outlive the model
  Io io = Io::Auto;
};

/// Owns its archives. What is declared const here never changes after open(): any number of threads may read
/// it. An archive's own rules hold for what is done to it.
class Model {
 public:
  /// @param source  a `.safetensors` file; an index, by the end of its name (`.index.json`); a directory that
  ///                holds exactly one index. Shards lie beside the index, as the path names it: where it is a
  ///                link, beside the link.
  /// @return the errors of Archive::open() for a single archive; of an index that can't be read or parsed; of
  ///         open_shards(); the first shard's where none can be used; EINVAL (InvalidArgument) where the
  ///         model is strict and something is wrong.
  static Result<std::unique_ptr<Model>> open(const std::filesystem::path& source,
                                             const ModelOptions& options);

  /// A model of that archive alone.
  explicit Model(std::unique_ptr<Archive> archive);

  /// Absolute path of the archive or of the index.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] bool is_sharded() const { return is_sharded_; }
  [[nodiscard]] Access access() const { return front().access(); }

  /// Of all shards that can be used. Of a single archive: its own.
  [[nodiscard]] const TensorIndex& tensors() const { return *tensors_; }
  /// Of a sharded model: all pairs of all shards, each key once. The first shard's value counts.
  [[nodiscard]] const Metadata& metadata() const { return *metadata_; }
  /// Of all tensors together, in bytes.
  [[nodiscard]] std::uint64_t data_size_bytes() const;

  [[nodiscard]] TensorPlace place(std::uint32_t tensor) const {
    return is_sharded_ ? places_[tensor] : TensorPlace{0, tensor};
  }
  /// The archive that holds a tensor.
  [[nodiscard]] Archive& archive_of(std::uint32_t tensor) const { return archive(place(tensor).shard); }
  /// Where a tensor lies in that archive's file, in bytes from its beginning.
  [[nodiscard]] ByteRange file_range(std::uint32_t tensor) const {
    const TensorPlace at = place(tensor);
    const Archive& holder = archive(at.shard);
    return holder.file_range(holder.tensors()[at.tensor].data);
  }

  /// In order of their names; of a single archive: that one.
  [[nodiscard]] std::span<const Shard> shards() const { return shards_; }
  /// Only of a shard that has one.
  [[nodiscard]] Archive& archive(std::uint32_t shard) const { return *shards_[shard].archive; }
  /// The first shard that can be used: there is one.
  [[nodiscard]] Archive& front() const { return *shards_[front_].archive; }
  /// The tensors of a shard lie side by side: position of the first one. Of shards().size(): their number.
  [[nodiscard]] std::uint32_t first_tensor(std::uint32_t shard) const { return first_tensors_[shard]; }

  /// The index is another file now, or none, or was written to, since it was opened. Never of a single
  /// archive.
  [[nodiscard]] bool is_index_changed() const;
  /// Of a shard that could not be used: another file lies there now, or it was written to.
  [[nodiscard]] bool is_refused_shard_changed(std::uint32_t shard) const;

  /// What was wrong when it was opened. Shards first, then in order of name.
  [[nodiscard]] std::span<const ModelProblem> problems() const { return problems_; }

  /// A tensor that the index names and no shard serves.
  struct Unserved {
    std::string name;
    std::uint32_t shard = 0;  // the one that the index names
  };
  /// In order of name.
  [[nodiscard]] std::span<const Unserved> unserved() const { return unserved_; }
  /// Why, for a person.
  [[nodiscard]] std::string why_unserved(const Unserved& tensor) const;

 private:
  Model() = default;
  static Result<std::unique_ptr<Model>> open_unguarded(const std::filesystem::path& source,
                                                       const ModelOptions& options);
  static Result<std::unique_ptr<Model>> open_index(const std::filesystem::path& source,
                                                   const ModelOptions& options);
  Result<void> adopt(const ModelIndex& index, Agreement agreement);
  Result<void> merge_tensors(std::vector<TensorPlace> places);
  void merge_metadata();
  [[nodiscard]] Result<void> check_strict() const;

  std::filesystem::path path_;
  bool is_sharded_ = false;
  std::vector<Shard> shards_;
  std::uint32_t front_ = 0;
  std::vector<ModelProblem> problems_;
  std::vector<Unserved> unserved_;
  std::vector<std::uint32_t> first_tensors_;
  const TensorIndex* tensors_ = nullptr;  // the next, or the archive's
  const Metadata* metadata_ = nullptr;
  // Of a sharded model only:
  Storage* storage_ = nullptr;
  FileIdentity index_identity_;
  TensorIndex merged_;
  Metadata merged_metadata_;
  std::vector<TensorPlace> places_;
};

}  // namespace stfs
