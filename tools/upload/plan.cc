// Turns requests into planned tensors with a place on a device.
#include "tools/upload/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "core/base/name_hash.h"
#include "core/tensor/float_conversion.h"
#include "tools/device/arena.h"
#include "tools/device/conversion.h"
#include "tools/device/selection.h"
#include "tools/device/tensor_scales.h"
#include "tools/text/near_names.h"
#include "tools/text/printable.h"
#include "tools/upload/sources.h"

namespace stfs::upload {
namespace {

using device::Device;
using device::DeviceRule;
using device::Selection;

/// No file is larger. The sum of a few such sizes still fits into 64 bits.
constexpr std::uint64_t kMaxArenaBytes = std::uint64_t{1} << 62U;

tl::unexpected<Error> refuse(const std::string& subject, std::string_view why) {
  return fail(ErrorCode::InvalidArgument, EINVAL, fmt::format("{}: {}", subject, why));
}

/// A selected tensor whose device is not known yet.
struct Chosen {
  std::uint32_t model = 0;
  std::uint32_t tensor = 0;
  std::optional<std::string> slice;
};

/// Records whether a pattern has matched in any source.
struct PatternUse {
  std::filesystem::path path;  // of the first source that has this pattern
  bool is_used = false;
};

class Planner {
 public:
  explicit Planner(const PlanRequest& request) : request_(request), sources_(*request.storage) {}

  Result<Plan> run() {
    RETURN_IF_ERROR(check_dtype());
    for (const SourceRequest& source : request_.sources) {
      RETURN_IF_ERROR(choose(source));
    }
    RETURN_IF_ERROR(check_patterns());
    RETURN_IF_ERROR(drop_repeated());
    name_devices();
    for (const Chosen& chosen : chosen_) {
      RETURN_IF_ERROR(place(chosen));
    }
    if (quantized_) {
      return refuse(
          model(quantized_->model).path().string(),
          fmt::format("{}: apply the scales with `stfs repack --dequantize` first, or give --cast to "
                      "convert the values without them",
                      device::needs_scales_text(model(quantized_->model).tensors(),
                                                model(quantized_->model).tensors()[quantized_->tensor],
                                                quantized_count_ - 1)));
    }
    plan_.models = sources_.models();
    return std::move(plan_);
  }

 private:
  Result<void> check_dtype() const {
    if (!request_.dtype) return {};
    RETURN_IF_ERROR(device::conversion_target_named(name_of(*request_.dtype)));
    return {};
  }

  [[nodiscard]] const Model& model(std::uint32_t at) const { return *sources_.models()[at]; }
  [[nodiscard]] std::string subject(const Chosen& chosen) const {
    const Model& from = model(chosen.model);
    return fmt::format("{}: {}", from.path().string(),
                       tools::printable_name(from.tensors()[chosen.tensor].name));
  }

  Result<void> choose(const SourceRequest& request) {
    auto sources = sources_.open(request.path);
    RETURN_IF_ERROR(sources);
    for (const std::string& pattern : request.patterns)
      uses_.try_emplace(pattern, PatternUse{request.path, false});
    for (const Source& source : *sources) {
      if (source.tensor) {
        choose_tensor(source.model, *source.tensor, request.patterns, true);
        continue;
      }
      const Model& from = model(source.model);
      if (request.patterns.empty() && !from.problems().empty()) {
        return refuse(from.path().string(), from.problems().front().message);
      }
      for (std::uint32_t tensor = 0; tensor < from.tensors().size(); ++tensor) {
        choose_tensor(source.model, tensor, request.patterns, false);
      }
    }
    return {};
  }

  /// @param is_named  true if the user named the tensor's own file: a slice then needs no name before it.
  void choose_tensor(std::uint32_t from, std::uint32_t tensor, const std::vector<std::string>& patterns,
                     bool is_named) {
    if (patterns.empty()) chosen_.push_back({from, tensor, std::nullopt});
    const std::string_view name = model(from).tensors()[tensor].name;
    for (const std::string& pattern : patterns) {
      const Selection& selection = selection_of(pattern);
      std::optional<std::string> slice;
      if (pattern != name) {
        const bool is_bare = is_named && selection.slice && selection.pattern.empty();
        if (!is_bare && !device::matches_name(selection.pattern, name)) continue;
        slice = selection.slice;
      }
      uses_[pattern].is_used = true;
      chosen_.push_back({from, tensor, slice});
    }
  }

  const Selection& selection_of(const std::string& pattern) {
    const auto known = selections_.find(pattern);
    return known != selections_.end()
               ? known->second
               : selections_.emplace(pattern, device::parse_selection(pattern)).first->second;
  }

  Result<void> check_patterns() const {
    for (const auto& [pattern, use] : uses_) {
      if (use.is_used) continue;
      std::vector<const TensorIndex*> among;
      for (const auto& from : sources_.models()) among.push_back(&from->tensors());
      return fail(ErrorCode::NotFound, ENOENT,
                  use.path.string() + ": " + tools::unmatched_text(pattern, among));
    }
    return {};
  }

  Result<void> drop_repeated() {
    const auto key = [](const Chosen& chosen) { return std::tuple(chosen.model, chosen.tensor); };
    std::ranges::stable_sort(chosen_, {}, key);
    const auto is_same = [&](const Chosen& a, const Chosen& b) {
      return key(a) == key(b) && a.slice == b.slice;
    };
    chosen_.erase(std::unique(chosen_.begin(), chosen_.end(), is_same), chosen_.end());
    const auto is_other_part = [&](const Chosen& a, const Chosen& b) { return key(a) == key(b); };
    const auto twice = std::ranges::adjacent_find(chosen_, is_other_part);
    if (twice != chosen_.end()) return refuse(subject(*twice), "is selected twice, with two slices");
    return {};
  }

  /// Adds all devices of the rules, in their order, so that a missing device is reported even if no tensor
  /// goes to it.
  void name_devices() {
    for (const DeviceRule& rule : request_.rules.rules()) {
      for (const Device& device : rule.devices) static_cast<void>(device_at(device));
    }
  }

  std::uint32_t device_at(const Device& device) {
    const auto found = std::ranges::find(plan_.devices, device, &PlannedDevice::device);
    if (found != plan_.devices.end()) return static_cast<std::uint32_t>(found - plan_.devices.begin());
    plan_.devices.push_back({device, 0});
    names_.emplace_back();
    return static_cast<std::uint32_t>(plan_.devices.size() - 1);
  }

  Result<void> place(const Chosen& chosen) {
    const Tensor tensor = model(chosen.model).tensors()[chosen.tensor];
    const std::string name(tensor.name);
    const DeviceRule* const rule = request_.rules.rule_for(name);
    if (rule == nullptr) {
      plan_.left_out.push_back(name);
      return {};
    }
    PlannedTensor planned{.name = name,
                          .model = chosen.model,
                          .tensor = chosen.tensor,
                          .slice = {},
                          .source_dtype = tensor.dtype,
                          .dtype = tensor.dtype,
                          .shape = {tensor.shape.begin(), tensor.shape.end()},
                          .source_bytes = tensor.data.size_bytes,
                          .device = 0,
                          .place = {}};
    RETURN_IF_ERROR(cut_out(chosen, *rule, tensor, planned));
    std::uint64_t size_bytes = planned.source_bytes;
    const TensorIndex& index = model(chosen.model).tensors();
    const bool is_due = request_.dtype && is_floating(tensor.dtype) && tensor.dtype != *request_.dtype;
    if (is_due && !device::is_scale(index, tensor)) {
      if (!request_.casts && !device::scales_of(index, tensor).empty()) {
        if (quantized_count_++ == 0) quantized_ = chosen;
        return {};
      }
      if (!device::float_format_of(tensor.dtype)) {
        return refuse(subject(chosen),
                      fmt::format("{} cannot be converted to {}: select other tensors, or omit --dtype",
                                  name_of(tensor.dtype), name_of(*request_.dtype)));
      }
      planned.dtype = *request_.dtype;
      size_bytes = size_bytes / (bits_of(tensor.dtype) / 8) * (bits_of(planned.dtype) / 8);
    }
    for (const Device& device : rule->devices) {
      planned.device = device_at(device);
      RETURN_IF_ERROR(give_place(chosen, size_bytes, planned));
      plan_.tensors.push_back(planned);
    }
    return {};
  }

  Result<void> cut_out(const Chosen& chosen, const DeviceRule& rule, const Tensor& tensor,
                       PlannedTensor& planned) {
    std::optional<std::string> text = chosen.slice;
    if (rule.shard) {
      if (text) return refuse(subject(chosen), "a slice and the shard of its rule exclude each other");
      auto shard = shard_text(*rule.shard, tensor);
      if (!shard) return tl::unexpected(std::move(shard).error().within(subject(chosen)));
      text = std::move(*shard);
    }
    if (!text) return {};
    auto slice = parse_slice(*text, tensor.dtype, tensor.shape);
    if (!slice) {
      return tl::unexpected(
          std::move(slice).error().within(fmt::format("{}[{}]", subject(chosen), tools::printable(*text))));
    }
    planned.shape = slice->shape;
    planned.source_bytes = slice->size_bytes;
    planned.slice = std::move(*slice);
    return {};
  }

  /// Returns the shard as slice text: ":,128:256" is the second half of dimension 1 of [64,256].
  static Result<std::string> shard_text(const device::ShardRule& shard, const Tensor& tensor) {
    const std::string shape = shape_text(tensor.shape);
    if (shard.dimension >= tensor.shape.size()) {
      return fail(ErrorCode::InvalidArgument, EINVAL,
                  fmt::format("shard({},{}/{}): its shape {} has no dimension {}", shard.dimension,
                              shard.part, shard.parts, shape, shard.dimension));
    }
    const std::uint64_t extent = tensor.shape[shard.dimension];
    if (extent % shard.parts != 0) {
      return fail(ErrorCode::InvalidArgument, EINVAL,
                  fmt::format("shard({},{}/{}): dimension {} of its shape {} does not divide by {}",
                              shard.dimension, shard.part, shard.parts, shard.dimension, shape, shard.parts));
    }
    std::string text;
    for (std::uint32_t at = 0; at < shard.dimension; ++at) text += ":,";
    const std::uint64_t share = extent / shard.parts;
    return text + fmt::format("{}:{}", share * (shard.part - 1), share * shard.part);
  }

  Result<void> give_place(const Chosen& chosen, std::uint64_t size_bytes, PlannedTensor& planned) {
    PlannedDevice& device = plan_.devices[planned.device];
    const std::uint64_t offset = device::aligned_for_tensor(device.arena_bytes);
    if (size_bytes > kMaxArenaBytes || offset > kMaxArenaBytes - size_bytes) {
      return fail(ErrorCode::OutOfMemory, ENOMEM,
                  fmt::format("{}: {}: more than any memory", subject(chosen), device.device.name()));
    }
    const auto [known, is_new] = names_[planned.device].try_emplace(planned.name, planned.model);
    if (!is_new) {
      return refuse(subject(chosen), fmt::format("{} already has a tensor of this name on {}",
                                                 model(known->second).path().string(), device.device.name()));
    }
    planned.place = {offset, size_bytes};
    device.arena_bytes = offset + size_bytes;
    return {};
  }

  const PlanRequest& request_;
  Sources sources_;
  std::map<std::string, PatternUse> uses_;
  NameMap<std::string, Selection> selections_;
  std::vector<Chosen> chosen_;
  std::optional<Chosen> quantized_;  // the first tensor that would lose its scales
  std::size_t quantized_count_ = 0;
  std::vector<NameMap<std::string, std::uint32_t>> names_;  // for each device: name -> model
  Plan plan_;
};

tl::unexpected<Error> changed(const std::filesystem::path& path, std::string_view how) {
  return fail(ErrorCode::ArchiveChanged, ESTALE,
              fmt::format("{}: {} since the upload was planned: plan it again", path.string(), how));
}

}  // namespace

std::uint64_t Plan::read_bytes() const {
  // A replica directly follows the tensor that it copies, and both are read once.
  std::uint64_t total = 0;
  const PlannedTensor* before = nullptr;
  for (const PlannedTensor& tensor : tensors) {
    const bool is_replica =
        before != nullptr && before->model == tensor.model && before->tensor == tensor.tensor;
    if (!is_replica) total += tensor.source_bytes;
    before = &tensor;
  }
  return total;
}

const ArchiveReader& Plan::archive_of(const PlannedTensor& tensor) const {
  return models[tensor.model]->archive_of(tensor.tensor);
}

std::uint64_t Plan::file_offset(const PlannedTensor& tensor) const {
  const std::uint64_t begin = models[tensor.model]->file_range(tensor.tensor).offset;
  return tensor.slice ? begin + tensor.slice->first_byte : begin;
}

Result<Plan> make_plan(const PlanRequest& request) {
  return guard_memory([&] { return Planner(request).run(); });
}

Result<void> check_unchanged(const Plan& plan) {
  for (const auto& model : plan.models) {
    if (model->is_index_changed()) return changed(model->path(), "was changed");
    for (const Shard& shard : model->shards()) {
      if (!shard.archive) continue;
      const auto change = shard.archive->check_for_change();
      RETURN_IF_ERROR(change);
      if (change->is_gone) return changed(shard.path, "was removed");
      if (change->is_replaced) return changed(shard.path, "was replaced");
      if (change->is_touched) return changed(shard.path, "was written to");
    }
  }
  return {};
}

}  // namespace stfs::upload
