#include "core/model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <set>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/base/absolute_path.h"
#include "core/format/json_string.h"
#include "core/format/tensor_index_builder.h"
#include "core/journal/file_lock.h"
#include "core/journal/left_journals.h"
#include "core/model/model_directory.h"
#include "core/model/model_index.h"
#include "core/remote/remote_storage.h"

namespace stfs {
namespace {

constexpr std::string_view kAnyIndexSuffix = ".index.json";
/// Each conflict is reported. A hostile header has millions.
constexpr std::size_t kMostConflicts = 100;

/// Reads a whole file, and its identity at that time.
Result<std::string> read_index_at(const std::filesystem::path& path, Storage& storage, Links links,
                                  FileIdentity& identity) {
  auto file = storage.open_behind(path, links);
  RETURN_IF_ERROR(file);
  const auto status = (*file)->status();
  RETURN_IF_ERROR(status);
  identity = status->identity;
  if (identity.size_bytes > kMaxModelIndexBytes) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: an index of {} bytes, at most {} are allowed", path.string(),
                            identity.size_bytes, kMaxModelIndexBytes));
  }
  auto text = read_text(**file, {0, identity.size_bytes});
  if (!text) return tl::unexpected(std::move(text).error().within(path.string()));
  return text;
}

}  // namespace

Result<std::unique_ptr<Model>> Model::open(const std::filesystem::path& source, const ModelOptions& options) {
  return guard_memory([&] { return open_unguarded(source, options); });
}

Result<std::unique_ptr<Model>> Model::open_unguarded(const std::filesystem::path& source,
                                                     const ModelOptions& options) {
  ModelOptions dated = options;
  dated.wait_until = options.deadline();
  auto model = open_layers(source, dated);
  if (model && options.access == Access::ReadWrite) (*model)->remove_left_journals();
  return model;
}

Result<std::unique_ptr<Model>> Model::open_layers(const std::filesystem::path& source,
                                                  const ModelOptions& options) {
  if (options.deltas.empty()) return open_base(source, options);
  ModelOptions below = options;
  below.access = Access::ReadOnly;
  auto model = open_base(source, below);
  for (std::size_t at = 0; at < options.deltas.size(); ++at) {
    RETURN_IF_ERROR(model);
    const bool is_on_top = at + 1 == options.deltas.size();
    model = add_delta(std::move(*model), options.deltas[at], is_on_top ? options : below);
  }
  return model;
}

Result<std::unique_ptr<Model>> Model::open_base(const std::filesystem::path& source,
                                                const ModelOptions& options) {
  if (is_url(source) && options.storage != &remote_storage()) {
    ModelOptions remote = options;
    remote.storage = &remote_storage();
    if (remote.io == Io::Mmap) remote.io = Io::Auto;
    const auto address = known_address(source);
    RETURN_IF_ERROR(address);
    return open_base(*address, remote);
  }
  if (!is_url(source) && is_directory_of_models(source)) {
    auto index = find_model_index(source, *options.storage);
    RETURN_IF_ERROR(index);
    return open_index(*index, options);
  }
  if (source.native().ends_with(kAnyIndexSuffix)) return open_index(source, options);
  auto archive =
      Archive::open(source, options.access, *options.storage, options.io, options.links, options.deadline());
  RETURN_IF_ERROR(archive);
  return std::make_unique<Model>(std::move(*archive));
}

Model::Model(std::unique_ptr<Archive> archive) : path_(archive->path()) {
  Shard& shard = shards_.emplace_back();
  shard.path = path_;
  shard.adopt(std::move(archive));
  tensors_ = &shard.version->tensors();
  ids_ = &shard.version->ids;
  metadata_ = &shard.version->metadata();
  first_tensors_ = {0, tensors_->size()};
  if (shard.version->header->content.fillers.empty()) return;
  TensorIndex::Builder builder;
  std::uint64_t offset = 0;  // no overflow: less than the file's size
  for (std::uint32_t at = 0; at < tensors_->size(); ++at) {
    Tensor moved = (*tensors_)[at];
    moved.data.offset = std::exchange(offset, offset + moved.data.size_bytes);
    builder.add(moved, at);
  }
  merged_ = std::move(*std::move(builder).build());
  tensors_ = &merged_;
}

Result<std::unique_ptr<Model>> Model::open_index(const std::filesystem::path& source,
                                                 const ModelOptions& options) {
  // An edit of the model replaces the index after the shards. While this thread opens the shards, another
  // process or recovery may be about to replace the index.
  constexpr int kMostTries = 5;
  constexpr std::chrono::milliseconds kPause{20};
  // Other programs may edit the model all the time. While index and shards differ, this thread tries for
  // longer.
  constexpr std::chrono::seconds kPatience{10};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  for (int tries = 1;; ++tries) {
    auto model = open_index_once(source, options);
    if (!model || !(*model)->is_being_edited()) return model;
    const bool is_whole = (*model)->check_whole("this").has_value();
    if (tries >= kMostTries && (is_whole || std::chrono::steady_clock::now() >= deadline)) return model;
    if (tries > 1) std::this_thread::sleep_for(kPause);
  }
}

bool Model::is_being_edited() const {
  return is_index_changed() || std::ranges::any_of(shards_, [](const Shard& shard) {
           const File* file = shard.archive ? shard.archive->local_file() : nullptr;
           return file != nullptr && ArchiveLocks::is_edited_by_other(*file);
         });
}

Result<std::unique_ptr<Model>> Model::open_index_once(const std::filesystem::path& source,
                                                      const ModelOptions& options) {
  std::unique_ptr<Model> model(new Model());
  auto absolute = absolute_path(source);
  RETURN_IF_ERROR(absolute);
  model->path_ = std::move(*absolute);
  const std::string name = source.string();
  model->storage_ = options.storage;
  const Links links = options.access == Access::ReadWrite ? Links::Trusted : options.links;
  auto text = read_index_at(model->path_, *options.storage, links, model->index_identity_);
  RETURN_IF_ERROR(text);
  auto index = model->open_named_shards(*text, options);
  RETURN_IF_ERROR(index);
  auto pending = model->pending_index(*text);
  RETURN_IF_ERROR(pending);
  if (*pending) index = model->open_named_shards(**pending, options);
  RETURN_IF_ERROR(index);
  const auto usable =
      std::ranges::find_if(model->shards_, [](const Shard& shard) { return shard.archive != nullptr; });
  if (usable == model->shards_.end()) {
    const Error& first = *model->shards_.front().failure;
    return fail(
        first.code, first.errno_value,
        fmt::format("{}: none of its {} shards can be used: {}", name, model->shards_.size(), first.message));
  }
  model->front_ = static_cast<std::uint32_t>(usable - model->shards_.begin());
  if (auto adopted = model->adopt(*index, place_tensors(*index, model->shards_)); !adopted)
    return tl::unexpected(std::move(adopted).error().within(name));
  if (options.is_strict) {
    if (auto whole = model->check_whole("strict"); !whole)
      return tl::unexpected(std::move(whole).error().within(name));
  }
  return model;
}

Result<ModelIndex> Model::open_named_shards(std::string_view text, const ModelOptions& options) {
  auto index = parse_model_index(text);
  if (!index) return tl::unexpected(std::move(index).error().within(path_.string()));
  if (index->shards().empty())
    return fail(ErrorCode::InvalidArgument, EINVAL, path_.string() + ": names no tensor and no shard");
  auto shards = open_shards(path_.parent_path(), index->shards(), options);
  RETURN_IF_ERROR(shards);
  shards_ = std::move(*shards);
  return index;
}

Result<std::optional<std::string>> Model::pending_index(std::string_view present) const {
  for (const Shard& shard : shards_) {
    if (!shard.archive) continue;
    auto text = shard.archive->new_index(path_.filename().native(), present);
    if (!text || *text) return text;
  }
  return std::optional<std::string>();
}

void Model::remove_left_journals() const {
  std::map<std::filesystem::path, std::set<std::string>> opened;  // names of archives by directory
  for (const Shard& shard : shards_) {
    if (!shard.archive || shard.archive->access() == Access::ReadOnly) continue;
    const std::filesystem::path& path = shard.archive->real_path();
    opened[path.parent_path()].insert(path.filename());
  }
  for (const auto& [directory, names] : opened)
    stfs::remove_left_journals(archive(front_).storage(), directory, names, has_index());
}

Result<void> Model::adopt(const ModelIndex& index, TensorPlacement placement) {
  is_sharded_ = true;
  problems_ = std::move(placement.problems);
  unserved_.reserve(placement.unserved.size());
  for (const std::uint32_t row : placement.unserved)
    unserved_.push_back({std::string(index[row].tensor), index[row].shard});
  merge_metadata();
  tensors_ = &merged_;
  ids_ = &merged_ids_;
  return merge_tensors(std::move(placement.places));
}

Result<void> Model::merge_tensors(std::vector<TensorPlace> places) {
  std::vector<Tensor> tensors;
  tensors.reserve(places.size());
  for (const TensorPlace place : places) tensors.push_back(version(place.shard).tensor(place.tensor));
  return merge_tensors(std::move(places), tensors);
}

Result<void> Model::merge_tensors(std::vector<TensorPlace> places, std::span<const Tensor> tensors) {
  // Positions in the merged index have 32 bits. All parts that are kept of a header are smaller than the
  // header, so this checks the headers' sizes.
  std::uint64_t headers_bytes = 0;
  for (const Shard& shard : shards_)
    if (shard.archive) headers_bytes += shard.version->header->size_bytes;
  if (headers_bytes > std::numeric_limits<std::uint32_t>::max()) {
    return fail(ErrorCode::HeaderTooLarge, EFBIG,
                fmt::format("the headers of the shards have {} bytes, at most {} are supported",
                            headers_bytes, std::numeric_limits<std::uint32_t>::max()));
  }
  TensorIndex::Builder builder;
  std::uint64_t offset = 0;
  first_tensors_.reserve(shards_.size() + 1);
  for (std::uint32_t at = 0; at < places.size(); ++at) {
    const TensorPlace place = places[at];
    while (first_tensors_.size() <= place.shard) first_tensors_.push_back(at);
    Tensor tensor = tensors[at];
    const auto range = ByteRange::checked(offset, tensor.data.size_bytes);
    if (!range) {
      return fail(ErrorCode::ValidationOverflow, EINVAL,
                  fmt::format("tensor {}: the data of the whole model end after byte 2^64-1",
                              in_quotes(tensor.name)));
    }
    tensor.data = *range;
    builder.add(tensor, at);  // `at` keeps the order of two empty tensors
    offset = range->end();
  }
  while (first_tensors_.size() <= shards_.size())
    first_tensors_.push_back(static_cast<std::uint32_t>(places.size()));
  auto built = std::move(builder).build();
  if (!built) {
    return fail(ErrorCode::DuplicateKey, EINVAL,
                fmt::format("tensor {} is in the model twice", in_quotes(built.error().name)));
  }
  merged_ = std::move(*built);
  merged_ids_ = TensorIds(merged_.size());
  places_ = std::move(places);
  return {};
}

Result<std::unique_ptr<Model>> Model::next(const Succession& succession) const {
  return guard_memory([&] { return next_unguarded(succession); });
}

Result<std::unique_ptr<Model>> Model::next_unguarded(const Succession& succession) const {
  auto next = delta_ ? lay_over(base_, shards_.back().archive, true) : next_of_shards();
  if (next) (*next)->succeed(*this, succession);
  return next;
}

Result<std::unique_ptr<Model>> Model::next_of_shards() const {
  std::unique_ptr<Model> next(new Model());
  next->path_ = path_;
  next->is_sharded_ = is_sharded_;
  next->front_ = front_;
  next->storage_ = storage_;
  if (storage_ != nullptr) next->index_identity_ = identity_at(path_, *storage_).value_or(FileIdentity{});
  std::vector<TensorPlace> places;
  for (const Shard& shard : shards_) {
    const auto at = static_cast<std::uint32_t>(next->shards_.size());
    next->shards_.push_back(shard);
    if (!shard.archive) continue;
    const auto& now = next->shards_.back().version = shard.archive->version();
    for (std::uint32_t position = 0; position < now->tensors().size(); ++position) {
      places.push_back({at, now->ids.of(position)});
    }
  }
  next->merge_metadata();
  RETURN_IF_ERROR(next->merge_tensors(std::move(places)));
  const ArchiveVersion& first = *next->shards_.front().version;
  const bool is_as_in_file = !is_sharded_ && first.header->content.fillers.empty();
  next->tensors_ = is_as_in_file ? &first.tensors() : &next->merged_;
  next->ids_ = &next->merged_ids_;
  return next;
}

void Model::succeed(const Model& before, const Succession& succession) {
  // By shard, then by the number of the tensor's id in its archive: the position in `before`, from 1.
  std::vector<std::vector<std::uint32_t>> positions(before.shards_.size());
  std::vector<bool> is_kept(before.tensors().size());
  for (std::uint32_t at = 0; at < before.tensors().size(); ++at) {
    const TensorPlace place = before.place(at);
    if (positions[place.shard].empty()) positions[place.shard].resize(before.version(place.shard).ids.end());
    positions[place.shard][number_of(place.tensor)] = at + 1;
  }
  std::vector<TensorId> ids;
  ids.reserve(places_.size());
  std::unordered_set<std::uint32_t> moved;  // ids of tensors that have moved from the base to the delta
  for (std::uint32_t at = 0; at < places_.size(); ++at) {
    const auto& of_shard = positions[places_[at].shard];
    const std::uint32_t number = number_of(places_[at].tensor);
    const std::uint32_t same = number < of_shard.size() ? of_shard[number] : 0;
    ids.push_back(same != 0 ? before.ids().of(same - 1) : succession.id_of_new(tensors()[at].name));
    if (same != 0) {
      is_kept[same - 1] = true;
    } else if (before.ids().position(ids.back())) {
      moved.insert(number_of(ids.back()));
    }
  }
  for (const auto& [id, removed] : before.removed_) {
    if (succession.is_open(id)) removed_.emplace(id, removed);
  }
  for (std::uint32_t at = 0; at < is_kept.size(); ++at) {
    const TensorId id = before.ids().of(at);
    if (is_kept[at] || moved.contains(number_of(id)) || !succession.is_open(id)) continue;
    const Tensor tensor = before.tensors()[at];
    removed_.emplace(id, Removed{.place = before.place(at),
                                 .file_range = before.file_range(id),
                                 .name = std::string(tensor.name),
                                 .dtype = tensor.dtype,
                                 .shape = {tensor.shape.begin(), tensor.shape.end()}});
  }
  merged_ids_ = TensorIds(std::move(ids), succession.end_of_ids());
  if (delta_ && delta_->all_base_bytes.empty()) delta_->all_base_bytes = before.delta_->all_base_bytes;
}

void Model::merge_metadata() {
  const auto has_some = [this](std::uint32_t shard) {
    return shards_[shard].archive && !version(shard).metadata().empty();
  };
  metadata_ = &merged_metadata_;
  std::uint32_t with_metadata = 0;
  for (std::uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (has_some(shard) && with_metadata++ == 0) metadata_ = &version(shard).metadata();
  }
  if (with_metadata <= 1) return;  // no metadata are stored twice
  metadata_ = &merged_metadata_;
  std::set<std::string_view> conflicts;
  for (std::uint32_t shard = 0; shard < shards_.size(); ++shard) {
    if (!has_some(shard)) continue;
    const Metadata& of_shard = version(shard).metadata();
    std::vector<std::uint32_t> added;
    for (std::uint32_t at = 0; at < of_shard.size(); ++at) {
      const auto [key, value] = of_shard[at];
      const auto first = merged_metadata_.find(key);
      if (!first) {
        added.push_back(at);
      } else if (*first != value && conflicts.size() <= kMostConflicts && conflicts.insert(key).second) {
        report_conflict(key, shard, conflicts.size());
      }
    }
    for (const std::uint32_t at : added)
      merged_metadata_.emplace_back(of_shard[at].first, of_shard[at].second);
    merged_metadata_.sort_keys();
  }
}

void Model::report_conflict(std::string_view key, std::uint32_t shard, std::size_t number) {
  if (number > kMostConflicts) {
    problems_.push_back({ModelProblem::Kind::MetadataConflict,
                         fmt::format("more than {} __metadata__ keys have different values in different "
                                     "shards; the first value of each counts",
                                     kMostConflicts)});
    return;
  }
  std::uint32_t first = 0;
  while (!shards_[first].archive || !version(first).metadata().find(key)) ++first;
  problems_.push_back(
      {ModelProblem::Kind::MetadataConflict,
       fmt::format("__metadata__ key {}: {} and {} have different values; the first value counts",
                   in_quotes(key), shards_[first].path.filename().string(),
                   shards_[shard].path.filename().string())});
}

Result<void> Model::check_whole(std::string_view by) const {
  // Shards may differ in metadata: the index says nothing about them.
  constexpr std::size_t kShown = 20;
  std::size_t count = 0;
  std::string list;
  for (const ModelProblem& problem : problems_) {
    if (problem.kind == ModelProblem::Kind::MetadataConflict) continue;
    if (++count <= kShown) list += "\n  " + problem.message;
  }
  if (count == 0) return {};
  if (count > kShown) list += fmt::format("\n  ... and {} more", count - kShown);
  return fail(ErrorCode::InvalidArgument, EINVAL,
              fmt::format("index and shards disagree in {} place{}, and {} refuses this:{}", count,
                          count == 1 ? "" : "s", by, list));
}

Result<std::string> Model::read_index() const {
  FileIdentity identity;
  auto text = read_index_at(path_, *storage_, Links::All, identity);
  if (text && identity != index_identity_) {
    return fail(ErrorCode::ArchiveChanged, ESTALE,
                path_.string() + ": the index was changed while it was open");
  }
  return text;
}

bool Model::is_index_changed() const {
  // A model on a server stays at the version that was opened.
  if (storage_ == nullptr || is_url(path_)) return false;
  return identity_at(path_, *storage_) != index_identity_;
}

bool Model::is_refused_shard_changed(std::uint32_t shard) const {
  return identity_at(shards_[shard].path, *storage_) != shards_[shard].before;
}

std::uint64_t Model::data_size_bytes() const {
  return tensors_->size() == 0 ? 0 : (*tensors_)[tensors_->size() - 1].data.end();
}

std::string Model::why_unserved(const Unserved& tensor) const {
  const Shard& shard = shards_[tensor.shard];
  const std::string why = shard.failure
                              ? shard.failure->message
                              : shard.path.string() + ": does not hold it, although the index names it";
  return fmt::format("tensor {}: {}", in_quotes(tensor.name), why);
}

}  // namespace stfs
