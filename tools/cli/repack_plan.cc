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
#include "tools/compare/name_globs.h"
#include "tools/device/conversion.h"

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

/// A rule, and whether its glob has matched a name.
struct UsedRule {
  NameGlobs glob;
  Dtype dtype;
};

Dtype dtype_of(const Tensor& tensor, std::vector<UsedRule>& rules) {
  const auto rule = std::ranges::find_if(rules, [&](UsedRule& each) { return each.glob.match(tensor.name); });
  return rule != rules.end() && upload::float_format_of(tensor.dtype) ? rule->dtype : tensor.dtype;
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

/// Begins a new file where the next tensor would make the last one too large.
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
  std::vector<UsedRule> rules;
  for (const DtypeRule& rule : options.dtypes) rules.push_back({NameGlobs({rule.glob}), rule.dtype});
  for (std::uint32_t position = 0; position < index.size(); ++position) {
    const Tensor tensor = index[position];
    if (!keep.match(tensor.name) || (!drop.empty() && drop.match(tensor.name))) {
      plan.left_out += 1;
      continue;
    }
    const Dtype dtype = dtype_of(tensor, rules);
    const Result<std::uint64_t> size_bytes = data_size_bytes(dtype, tensor.shape);
    if (!size_bytes) return tl::unexpected(Error(size_bytes.error()).within(std::string(tensor.name)));
    if (dtype != tensor.dtype) plan.converted += 1;
    plan.tensors.push_back({position, dtype, *size_bytes});
    plan.data_bytes += *size_bytes;
  }
  const auto note_unused = [&plan](const NameGlobs& globs) {
    for (std::string& glob : globs.unused()) plan.unused_globs.push_back(std::move(glob));
  };
  note_unused(keep);
  note_unused(drop);
  for (const UsedRule& rule : rules) note_unused(rule.glob);
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
