#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/name_hash.h"
#include "core/model/model.h"

namespace stfs {

Result<std::unique_ptr<Model>> Model::add_delta(std::unique_ptr<Model> base,
                                                const std::filesystem::path& delta,
                                                const ModelOptions& options) {
  auto archive =
      Archive::open(delta, options.access, *options.storage, options.io, options.links, options.deadline());
  RETURN_IF_ERROR(archive);
  for (const Shard& shard : base->shards()) {
    if (!shard.version) continue;
    if (!shard.version->status.identity.same_file((*archive)->opened_status().identity)) continue;
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("{}: not usable as a delta: it is the same file as {}, which it would change",
                            delta.string(), shard.path.string()));
  }
  auto model = lay_over(std::move(base), std::move(*archive), false);
  if (!model) return tl::unexpected(std::move(model).error().within(delta.string()));
  if (options.check_base) {
    RETURN_IF_ERROR(options.check_base(**model));
  }
  return model;
}

Result<std::unique_ptr<Model>> Model::lay_over(std::shared_ptr<const Model> base,
                                               std::shared_ptr<Archive> archive, bool is_known) {
  std::unique_ptr<Model> model(new Model());
  model->path_ = base->path_;
  model->is_sharded_ = true;
  model->shards_ = base->shards_;
  model->front_ = base->front_;
  model->storage_ = base->storage_;
  model->index_identity_ = base->index_identity_;
  Shard& shard = model->shards_.emplace_back();
  shard.path = archive->path();
  shard.adopt(std::move(archive));
  auto delta = parse_delta(shard.version->metadata());
  RETURN_IF_ERROR(delta);
  const TensorIndex& changed = shard.version->tensors();
  // If a shard of the base is missing, the base has another digest. The message names the shard, which is the
  // reason.
  RETURN_IF_ERROR(base->check_whole("a delta"));
  RETURN_IF_ERROR(is_known ? check_names(*delta, changed, base->tensors())
                           : check_delta(*delta, changed, base->tensors()));
  model->delta_ = std::move(*delta);
  model->delta_count_ = base->delta_count_ + 1;
  model->metadata_ = &model->delta_->metadata;

  NameSet<std::string_view> removed(model->delta_->removed.begin(), model->delta_->removed.end());
  NameMap<std::string_view, const Delta::Renamed*> renamed;
  for (const Delta::Renamed& one : model->delta_->renamed) renamed.emplace(one.from, &one);
  std::vector<TensorPlace> places;
  std::vector<Tensor> tensors;
  for (std::uint32_t position = 0; position < base->tensors().size(); ++position) {
    Tensor tensor = base->tensors()[position];
    const auto other = renamed.find(tensor.name);
    if (other != renamed.end()) {
      tensor = {other->second->name, other->second->dtype, other->second->shape, tensor.data};
    } else if (removed.contains(tensor.name) || changed.find(tensor.name)) {
      continue;
    }
    places.push_back(base->place(position));
    tensors.push_back(tensor);
  }
  for (std::uint32_t position = 0; position < changed.size(); ++position) {
    places.push_back({model->top(), shard.version->ids.of(position)});
    tensors.push_back(changed[position]);
  }
  model->base_ = std::move(base);
  model->tensors_ = &model->merged_;
  model->ids_ = &model->merged_ids_;
  RETURN_IF_ERROR(model->merge_tensors(std::move(places), tensors));
  return model;
}

std::vector<std::filesystem::path> Model::delta_paths() const {
  std::vector<std::filesystem::path> paths;
  for (const Shard& shard : shards().last(delta_count_)) paths.push_back(shard.path);
  return paths;
}

}  // namespace stfs
