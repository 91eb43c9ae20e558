// Selects, sorts, converts and cuts into shards, in this order.
#include "tools/cli/repack_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <compare>
#include <utility>

#include "core/format/header.h"
#include "core/model/model_directory.h"
#include "core/model/model_index.h"
#include "core/tensor/float_conversion.h"
#include "tools/compare/name_globs.h"
#include "tools/device/conversion.h"
#include "tools/text/printable.h"

namespace stfs::tools {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Removes the digits at the beginning, and returns them without leading zeros.
std::string_view take_number(std::string_view& text) {
  const auto end = std::ranges::find_if_not(text, is_digit);
  std::string_view digits = text.substr(0, static_cast<std::size_t>(end - text.begin()));
  text.remove_prefix(digits.size());
  const std::size_t zeros = digits.find_first_not_of('0');
  digits.remove_prefix(zeros == std::string_view::npos ? digits.size() : zeros);
  return digits;
}

std::strong_ordering compare_by_number(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view left = take_number(a);
      const std::string_view right = take_number(b);
      if (left.size() != right.size()) return left.size() <=> right.size();
      if (const auto order = left.compare(right) <=> 0; order != 0) return order;
      continue;
    }
    // As bytes without a sign, like std::string_view.
    const auto left = static_cast<unsigned char>(a.front());
    const auto right = static_cast<unsigned char>(b.front());
    if (left != right) return left <=> right;
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return a.size() <=> b.size();
}

/// A rule. Its glob notes whether it has matched a name.
struct UsedRule {
  NameGlobs glob;
  bool is_for_all;
  Dtype dtype;
};

tl::unexpected<Error> refuse(std::string why) {
  return fail(ErrorCode::InvalidArgument, EINVAL, std::move(why));
}

/// Returns true if `to` can represent each value of `from`.
bool holds_all(Dtype to, Dtype from) {
  const auto wide = device::float_format_of(to);
  const auto narrow = device::float_format_of(from);
  return wide && bits_of(to) > bits_of(from) &&
         (!narrow ||
          (wide->exponent_bits >= narrow->exponent_bits && wide->mantissa_bits >= narrow->mantissa_bits));
}

/// Decides the handling of each tensor that a rule matches.
class Conversions {
 public:
  Conversions(const TensorIndex& index, const RepackOptions& options)
      : index_(index), quantized_(options.quantized) {
    for (const DtypeRule& rule : options.dtypes) {
      rules_.push_back({NameGlobs({rule.glob}), rule.glob == "*", rule.dtype});
    }
  }

  /// Returns the tensor in the form in which it will be written.
  Result<RepackedTensor> convert(std::uint32_t position) {
    const Tensor tensor = index_[position];
    RepackedTensor to{.source = position, .dtype = tensor.dtype};
    const auto rule =
        std::ranges::find_if(rules_, [&](UsedRule& each) { return each.glob.match(tensor.name); });
    if (rule != rules_.end()) {
      RETURN_IF_ERROR(decide(tensor, *rule, to));
    }
    const Result<std::uint64_t> size_bytes = data_size_bytes(to.dtype, tensor.shape);
    if (!size_bytes) return tl::unexpected(Error(size_bytes.error()).within(std::string(tensor.name)));
    to.size_bytes = *size_bytes;
    return to;
  }

  /// Fails if quantized values would lose their scales: then nothing may be written.
  [[nodiscard]] Result<void> check() const {
    if (quantized_count_ == 0) return {};
    return refuse(
        fmt::format("{}: give --dequantize to apply the scales, or --cast to convert the values without them",
                    device::needs_scales_text(index_, index_[first_quantized_], quantized_count_ - 1)));
  }

  [[nodiscard]] const std::vector<UsedRule>& rules() const { return rules_; }
  std::vector<KeptDtype> kept{};
  std::map<std::uint32_t, device::TensorScales> applied{};

 private:
  Result<void> decide(const Tensor& tensor, const UsedRule& rule, RepackedTensor& to) {
    if (device::is_scale(index_, tensor)) return decide_scale(tensor, rule, to);
    if (quantized_ == Quantized::Dequantize) {
      if (auto why = device::packed_fault(index_, tensor)) return refuse(std::move(*why));
    }
    if (!is_floating(tensor.dtype)) {
      kept.push_back({to.source, "only real floating-point numbers are converted"});
      return {};
    }
    const bool has_scales = !device::scales_of(index_, tensor).empty();
    if (has_scales && quantized_ == Quantized::Dequantize) {
      auto known = device::known_scales_of(index_, tensor);
      RETURN_IF_ERROR(known);
      applied.emplace(to.source, std::move(*known));
    } else if (has_scales && quantized_ == Quantized::Refuse && rule.dtype != tensor.dtype) {
      if (quantized_count_++ == 0) first_quantized_ = to.source;
    }
    to.dtype = rule.dtype;
    return {};
  }

  Result<void> decide_scale(const Tensor& tensor, const UsedRule& rule, RepackedTensor& to) {
    if (rule.dtype == tensor.dtype) return {};
    if (rule.is_for_all || !is_floating(tensor.dtype)) {
      kept.push_back({to.source, "a scale"});
      return {};
    }
    if (!holds_all(rule.dtype, tensor.dtype)) {
      return refuse(
          fmt::format("{} is a scale: {} can't hold all values of {}, and an inexact scale would "
                      "change all values that it multiplies",
                      printable_name(tensor.name), name_of(rule.dtype), name_of(tensor.dtype)));
    }
    to.dtype = rule.dtype;
    return {};
  }

  const TensorIndex& index_;
  const Quantized quantized_;
  std::vector<UsedRule> rules_;
  std::size_t quantized_count_ = 0;  // tensors that need their scales
  std::uint32_t first_quantized_ = 0;
};

/// Leaves out the scales that are applied.
void leave_out_applied(RepackPlan& plan) {
  std::vector<std::uint32_t> applied;
  for (const auto& [source, scales] : plan.scales) applied.push_back(scales.tensor);
  std::ranges::sort(applied);
  const auto is_applied = [&applied](std::uint32_t source) {
    return std::ranges::binary_search(applied, source);
  };
  std::erase_if(plan.tensors, [&](const RepackedTensor& tensor) { return is_applied(tensor.source); });
  std::erase_if(plan.kept_dtypes, [&](const KeptDtype& kept) { return is_applied(kept.source); });
}

void sort(std::vector<RepackedTensor>& tensors, const TensorIndex& index, TensorOrder order) {
  const auto name_of_tensor = [&index](const RepackedTensor& tensor) { return index[tensor.source].name; };
  if (order == TensorOrder::Name) {
    std::ranges::sort(tensors, is_before_by_number, name_of_tensor);
  } else if (order == TensorOrder::Reference) {
    std::ranges::sort(tensors, [&](const RepackedTensor& a, const RepackedTensor& b) {
      return is_written_before(a.dtype, name_of_tensor(a), b.dtype, name_of_tensor(b));
    });
  }
}

/// Begins a new file if the next tensor would make the last one too large.
void cut(RepackPlan& plan, std::optional<std::uint64_t> shard_bytes) {
  plan.files.emplace_back();
  for (std::size_t at = 0; at < plan.tensors.size(); ++at) {
    const std::uint64_t size_bytes = plan.tensors[at].size_bytes;
    const RepackedFile& last = plan.files.back();
    const bool is_full =
        shard_bytes && last.count > 0 && size_bytes > *shard_bytes - std::min(*shard_bytes, last.data_bytes);
    if (is_full) plan.files.push_back({.path = {}, .first = at});
    RepackedFile& file = plan.files.back();
    file.count += 1;
    file.data_bytes += size_bytes;
  }
}

void name_files(RepackPlan& plan, const RepackOptions& options) {
  if (!options.shard_bytes) {
    plan.files.front().path = options.out;
    return;
  }
  std::string stem = options.out.native();
  stem.resize(stem.size() - kModelIndexSuffix.size());
  for (std::size_t at = 0; at < plan.files.size(); ++at) {
    plan.files[at].path = fmt::format("{}-{:05}-of-{:05}.safetensors", stem, at + 1, plan.files.size());
  }
}

}  // namespace

bool is_before_by_number(std::string_view a, std::string_view b) {
  const auto order = compare_by_number(a, b);
  return order != 0 ? order < 0 : a < b;
}

Result<RepackPlan> plan_repack(const Model& model, const RepackOptions& options) {
  const TensorIndex& index = model.tensors();
  RepackPlan plan;
  NameGlobs keep(options.keep);
  NameGlobs drop(options.drop);
  Conversions conversions(index, options);
  for (std::uint32_t position = 0; position < index.size(); ++position) {
    const Tensor tensor = index[position];
    if (!keep.match(tensor.name) || (!drop.empty() && drop.match(tensor.name))) {
      plan.left_out += 1;
      continue;
    }
    auto converted = conversions.convert(position);
    RETURN_IF_ERROR(converted);
    plan.tensors.push_back(std::move(*converted));
  }
  RETURN_IF_ERROR(conversions.check());
  plan.kept_dtypes = std::move(conversions.kept);
  plan.scales = std::move(conversions.applied);
  leave_out_applied(plan);
  for (const RepackedTensor& tensor : plan.tensors) {
    if (tensor.dtype != index[tensor.source].dtype) plan.converted += 1;
    plan.data_bytes += tensor.size_bytes;
  }
  const auto note_unused = [&plan](const NameGlobs& globs) {
    for (std::string& glob : globs.unused()) plan.unused_globs.push_back(std::move(glob));
  };
  note_unused(keep);
  note_unused(drop);
  for (const UsedRule& rule : conversions.rules()) note_unused(rule.glob);
  sort(plan.tensors, index, options.order);
  cut(plan, options.shard_bytes);
  if (plan.files.size() > kMaxShards) {
    return fail(ErrorCode::InvalidArgument, EFBIG,
                fmt::format("{} shards: an index may name at most {}", plan.files.size(), kMaxShards));
  }
  name_files(plan, options);
  plan.out = options.out;
  plan.has_index = options.shard_bytes.has_value();
  plan.metadata = model.metadata();
  return plan;
}

RepackPlan plan_of_tensors(const Model& model, const std::vector<std::uint32_t>& positions,
                           const std::filesystem::path& out, Metadata metadata) {
  RepackPlan plan;
  for (const std::uint32_t position : positions) {
    const Tensor tensor = model.tensors()[position];
    plan.tensors.push_back({position, tensor.dtype, tensor.data.size_bytes});
    plan.data_bytes += tensor.data.size_bytes;
  }
  plan.files.push_back({.path = out, .first = 0, .count = positions.size(), .data_bytes = plan.data_bytes});
  plan.out = out;
  plan.metadata = std::move(metadata);
  return plan;
}

}  // namespace stfs::tools
