// A model: one archive, or all shards of an index, as one set of tensors.
//
// Tensor::data of a sharded model, and of an archive with fillers, are ranges of an archive that no file
// holds (fs/read/whole_views.h shows it). In this archive the tensors of all shards are back to back, in
// order of shard and then of offset. The format allows no gap between tensors, so only the start of the whole
// data section is aligned to a page; the start of each shard is not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/archive/archive.h"
#include "core/base/error.h"
#include "core/format/tensor_id.h"
#include "core/format/tensor_index.h"
#include "core/model/delta.h"
#include "core/model/model_shards.h"
#include "core/model/tensor_placement.h"

namespace stfs {

class Model;

struct ModelOptions {
  Access access = Access::ReadOnly;
  /// Refuses a model whose index and shards disagree. The error names all disagreements.
  bool is_strict = false;
  Storage* storage = &system_storage();  // must outlive the model
  Io io = Io::Auto;
  /// The links that may lead to archives and indexes. ReadWrite follows only trusted links, whatever this
  /// says.
  Links links = Links::All;
  /// The deadline for waiting for processes that change the structure of archives. Nothing: kEditPatience,
  /// for all archives together.
  std::optional<Deadline> wait_until{};
  /// Opens shards with several threads. False: the caller's thread opens them, one after the other.
  bool uses_threads = true;
  /// Deltas (delta.h) whose changes the model shows on top of the source, each on top of the previous ones.
  /// The access applies to the last delta: the source and the other deltas are only read.
  std::vector<std::filesystem::path> deltas{};
  /// Is called for each delta after it is laid over its base. A failure ends the opening. Null: the bytes of
  /// the base are not checked, only names, dtypes and shapes of its tensors.
  std::function<Result<void>(const Model& model)> check_base{};

  [[nodiscard]] Deadline deadline() const { return wait_until.value_or(deadline_in(kEditPatience)); }
};

/// Owns its archives. Everything that is const here never changes after open(), so any number of threads may
/// read it: the model pins the version of each archive that it found. Calls on an archive follow the
/// archive's rules.
class Model {
 public:
  /// @param source  a `.safetensors` file; an index, known by the end of its name (`.index.json`); or a
  ///                directory that holds exactly one index. Shards are in the directory of the index's path.
  ///                If this path is a link, they are in the directory of the link.
  /// @return the errors of Archive::open() for a single archive; of reading or parsing the index; of
  ///   open_shards(); the first shard's error if no shard can be used; EINVAL (InvalidArgument) if is_strict
  ///   is set and something is wrong.
  static Result<std::unique_ptr<Model>> open(const std::filesystem::path& source,
                                             const ModelOptions& options);

  /// Makes a model of this archive alone.
  explicit Model(std::unique_ptr<Archive> archive);

  /// A tensor that an edit removed from the model and that programs have open. Its bytes stay where they are
  /// (ArchiveEdit::kept).
  struct Removed {
    TensorPlace place;
    ByteRange file_range;  // absolute
    std::string name;
    Dtype dtype = Dtype::U8;
    std::vector<std::uint64_t> shape;
  };
  struct Succession {
    /// Returns the id of a tensor that the edit has made. No id is used twice.
    std::function<TensorId(std::string_view name)> id_of_new;
    /// Returns true if a tensor that this edit or an earlier one removed is still open.
    std::function<bool(TensorId)> is_open = [](TensorId) { return false; };
    /// Returns a number above all ids that were given so far, including ids from id_of_new.
    std::function<std::uint32_t()> end_of_ids;
  };
  /// Returns the model after an edit that was committed through its archives. Both models share the archives.
  /// Tensors that the edit has left alone, renamed or reinterpreted keep their ids.
  [[nodiscard]] Result<std::unique_ptr<Model>> next(const Succession& succession) const;

  /// The absolute path of the archive or of the index.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Returns true if the model has several archives: shards, or a delta and its base.
  [[nodiscard]] bool is_sharded() const { return is_sharded_; }
  /// Returns true if the places of tensors() in a file differ from Tensor::data (see above).
  [[nodiscard]] bool is_rearranged() const { return tensors_ == &merged_; }
  /// With a delta, this is the access to the delta on top.
  [[nodiscard]] Access access() const { return archive(delta_ ? top() : front_).access(); }

  /// The tensors of all usable shards, or of the single archive.
  [[nodiscard]] const TensorIndex& tensors() const { return *tensors_; }
  /// For a sharded model: the pairs of all shards, each key once, with the first shard's value. With a delta:
  /// the variant's metadata.
  [[nodiscard]] const Metadata& metadata() const { return *metadata_; }
  /// The size of all tensors together, in bytes.
  [[nodiscard]] std::uint64_t data_size_bytes() const;

  /// The ids of tensors(). A single archive has the ids of its version.
  [[nodiscard]] const TensorIds& ids() const { return *ids_; }
  // Calls with an id take a tensor of the model, or a tensor in removed().
  [[nodiscard]] Tensor tensor(TensorId id) const {
    const auto position = ids().position(id);
    return position ? tensors()[*position] : tensor_of(removed_.at(id));
  }
  [[nodiscard]] const std::unordered_map<TensorId, Removed>& removed() const { return removed_; }
  [[nodiscard]] bool has(TensorId id) const { return ids().position(id) || removed_.contains(id); }
  /// The delta on top, if any. Its archive is the last one of shards(); the others are its base.
  [[nodiscard]] const std::optional<Delta>& delta() const { return delta_; }
  /// Keeps the digest of the bytes of base() for edits of the delta (delta_base.h).
  void keep_all_base_bytes(std::string digest) { delta_->all_base_bytes = std::move(digest); }
  /// The absolute paths of all deltas, the one on top last.
  [[nodiscard]] std::vector<std::filesystem::path> delta_paths() const;
  /// The position of the last shard, which gets new tensors. With a delta, this is the delta on top.
  [[nodiscard]] std::uint32_t top() const { return static_cast<std::uint32_t>(shards_.size() - 1); }
  /// Returns true if a shard is part of the base of a delta. This model does not write to such a shard.
  [[nodiscard]] bool is_of_base(std::uint32_t shard) const { return delta_.has_value() && shard < top(); }
  /// The model under the delta on top; null without a delta. With several deltas, this model has a delta
  /// also.
  [[nodiscard]] const Model* base() const { return base_.get(); }

  /// Returns the id of the tensor with exactly this name.
  [[nodiscard]] std::optional<TensorId> find(std::string_view name) const {
    const auto position = tensors().find(name);
    return position ? std::optional(ids().of(*position)) : std::nullopt;
  }

  // These calls take the tensor's position in tensors(), or its id.
  [[nodiscard]] TensorPlace place(std::uint32_t position) const {
    return places_.empty() ? TensorPlace{0, ids().of(position)} : places_[position];
  }
  [[nodiscard]] TensorPlace place(TensorId id) const {
    const auto position = ids().position(id);
    return position ? place(*position) : removed_.at(id).place;
  }
  /// Returns the archive that holds a tensor.
  [[nodiscard]] ArchiveReader& archive_of(auto tensor) const { return reader(place(tensor).shard); }
  /// Returns the place of a tensor in that archive's file, in bytes from the file's beginning.
  [[nodiscard]] ByteRange file_range(std::uint32_t position) const {
    const TensorPlace at = place(position);
    return version(at.shard).file_range(at.tensor);
  }
  [[nodiscard]] ByteRange file_range(TensorId id) const {
    const auto position = ids().position(id);
    return position ? file_range(*position) : removed_.at(id).file_range;
  }

  /// All shards in order of their names; for a single archive, this archive.
  [[nodiscard]] std::span<const Shard> shards() const { return shards_; }
  /// The shard's archive. The shard must have one.
  [[nodiscard]] ArchiveReader& reader(std::uint32_t shard) const { return *shards_[shard].archive; }
  /// Returns the same archive, for writers.
  [[nodiscard]] Archive& archive(std::uint32_t shard) const { return *shards_[shard].archive; }
  /// The version of the shard's archive that this model shows. The shard must have an archive.
  [[nodiscard]] const ArchiveVersion& version(std::uint32_t shard) const { return *shards_[shard].version; }
  /// The archive of the first usable shard. There is always one.
  [[nodiscard]] ArchiveReader& front() const { return reader(front_); }
  [[nodiscard]] const ArchiveVersion& front_version() const { return version(front_); }
  /// The position of a shard's first tensor: a shard's tensors are adjacent. For shards().size(): the number
  /// of tensors.
  [[nodiscard]] std::uint32_t first_tensor(std::uint32_t shard) const { return first_tensors_[shard]; }

  /// Returns true if path() is an index.
  [[nodiscard]] bool has_index() const { return storage_ != nullptr && !delta_; }
  /// Returns the text of the index. ArchiveChanged (ESTALE): the index was replaced or changed after it was
  /// opened.
  [[nodiscard]] Result<std::string> read_index() const;
  /// Fails if index and shards disagree, except about metadata.
  /// @param by  names the caller that refuses such a model, for the message.
  [[nodiscard]] Result<void> check_whole(std::string_view by) const;

  /// Returns true if the index was replaced, removed or written to after it was opened. False for a single
  /// archive.
  [[nodiscard]] bool is_index_changed() const;
  /// For an unusable shard: returns true if its path now names another file, or if its file was written to.
  [[nodiscard]] bool is_refused_shard_changed(std::uint32_t shard) const;

  /// The problems found at opening: problems of shards first, the others in order of name.
  [[nodiscard]] std::span<const ModelProblem> problems() const { return problems_; }

  /// A tensor that the index names and no shard serves.
  struct Unserved {
    std::string name;
    std::uint32_t shard = 0;  // the shard that the index names
  };
  /// In order of name.
  [[nodiscard]] std::span<const Unserved> unserved() const { return unserved_; }
  /// Returns the reason why the tensor is not served, for a person.
  [[nodiscard]] std::string why_unserved(const Unserved& tensor) const;

 private:
  Model() = default;
  static Result<std::unique_ptr<Model>> open_unguarded(const std::filesystem::path& source,
                                                       const ModelOptions& options);
  static Result<std::unique_ptr<Model>> open_index(const std::filesystem::path& source,
                                                   const ModelOptions& options);
  static Result<std::unique_ptr<Model>> open_index_once(const std::filesystem::path& source,
                                                        const ModelOptions& options);
  static Result<std::unique_ptr<Model>> open_layers(const std::filesystem::path& source,
                                                    const ModelOptions& options);
  /// Parses the index, and opens the shards that it names.
  Result<ModelIndex> open_named_shards(std::string_view text, const ModelOptions& options);
  /// Returns the index of an edit that is committed and that this process may not finish, or nothing.
  [[nodiscard]] Result<std::optional<std::string>> pending_index(std::string_view present) const;
  /// Tidies the directories of the archives that are open for writing (left_journals.h).
  void remove_left_journals() const;
  /// Returns true if the index was replaced after it was read, or if another process changes a shard's
  /// structure.
  [[nodiscard]] bool is_being_edited() const;
  static Result<std::unique_ptr<Model>> open_base(const std::filesystem::path& source,
                                                  const ModelOptions& options);
  /// Makes the model of the base's tensors with the delta's changes.
  /// @param is_known  an earlier call has checked that the delta fits this base.
  static Result<std::unique_ptr<Model>> lay_over(std::shared_ptr<const Model> base,
                                                 std::shared_ptr<Archive> archive, bool is_known);
  /// Opens a delta and lays it over its base.
  static Result<std::unique_ptr<Model>> add_delta(std::unique_ptr<Model> base,
                                                  const std::filesystem::path& delta,
                                                  const ModelOptions& options);
  Result<void> adopt(const ModelIndex& index, TensorPlacement placement);
  /// Takes names, dtypes and shapes from the shards' headers.
  Result<void> merge_tensors(std::vector<TensorPlace> places);
  /// @param tensors  by position in `places`; their data are as long as the tensors.
  Result<void> merge_tensors(std::vector<TensorPlace> places, std::span<const Tensor> tensors);
  Result<std::unique_ptr<Model>> next_unguarded(const Succession& succession) const;
  /// Makes the next model from the present versions of all shards, without a delta.
  [[nodiscard]] Result<std::unique_ptr<Model>> next_of_shards() const;
  /// Gives the tensors the ids that they have in the model `before`.
  void succeed(const Model& before, const Succession& succession);
  static Tensor tensor_of(const Removed& removed) {
    return {removed.name, removed.dtype, removed.shape, {0, removed.file_range.size_bytes}};
  }
  /// Uses a shard's own metadata if no other shard has any.
  void merge_metadata();
  void report_conflict(std::string_view key, std::uint32_t shard, std::size_t number);

  std::filesystem::path path_;
  bool is_sharded_ = false;
  std::vector<Shard> shards_;
  std::uint32_t front_ = 0;
  std::vector<ModelProblem> problems_;
  std::vector<Unserved> unserved_;
  std::vector<std::uint32_t> first_tensors_;
  // Each points to a member below, or into the pinned version.
  const TensorIndex* tensors_ = nullptr;
  const TensorIds* ids_ = nullptr;
  const Metadata* metadata_ = nullptr;
  // Only for a model with an index:
  Storage* storage_ = nullptr;
  FileIdentity index_identity_;
  // Only for several archives, and after an edit:
  std::optional<Delta> delta_;
  std::size_t delta_count_ = 0;
  std::shared_ptr<const Model> base_;  // with a delta
  TensorIndex merged_;
  TensorIds merged_ids_;
  Metadata merged_metadata_;
  std::vector<TensorPlace> places_;  // by position; empty: the ids are the only archive's
  std::unordered_map<TensorId, Removed> removed_;
};

}  // namespace stfs
