#include "tools/device/tensor_scales.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "tools/text/printable.h"
#include "tools/text/quantity.h"

namespace stfs::device {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::uint64_t kBlock = 128;   // DeepSeek's weight_block_size, of rows and of columns
constexpr std::uint64_t kMxBlock = 32;  // OCP, MX specification 1.0, table 1

// Last parts of names that only quantizers write.
constexpr std::array kScaleNames = {
    "weight_scale"sv,
    "weight_scale_inv"sv,
    "weight_scale_2"sv,
    "weight_global_scale"sv,
    "input_scale"sv,
    "input_scale_ub"sv,
    "input_global_scale"sv,
    "activation_scale"sv,
    "output_scale"sv,
    "k_scale"sv,
    "v_scale"sv,
    "q_scale"sv,
    "kv_scale"sv,
    "scale_inv"sv,
};
// The ends that follow the name of the values. The first three are in the table of the header.
constexpr std::array kScaleEnds = {"_scale_inv"sv,    "_scale"sv,      "_scales"sv,    "_scale_2"sv,
                                   "_global_scale"sv, "_zero_point"sv, ".scale_inv"sv, ".scale"sv,
                                   ".scales"sv,       ".absmax"sv};
// The names of scales beside "weight".
constexpr std::array kScalesOfWeight = {"scale"sv, "scales"sv, "scale_weight"sv, "w_scale"sv};
// The names of values beside "scale", "scales" and "input_scale".
constexpr std::array kValueNames = {"weight"sv, "qweight"sv, "weight_packed"sv};
// The ends of the names of values whose scales end in "_scales", in the place of that end.
constexpr std::array kValueEnds = {""sv, "_blocks"sv, "_packed"sv};

bool is_small_float(Dtype dtype) {
  switch (dtype) {
    case Dtype::F4:
    case Dtype::F6_E2M3:
    case Dtype::F6_E3M2:
    case Dtype::F8_E4M3:
    case Dtype::F8_E5M2:
    case Dtype::F8_E4M3FNUZ:
    case Dtype::F8_E5M2FNUZ: return true;
    default: return false;
  }
}

bool is_packed(Dtype dtype) {
  return dtype == Dtype::I8 || dtype == Dtype::U8 || dtype == Dtype::I32 || dtype == Dtype::U32;
}

/// Returns the part before the last dot, with the dot; empty without a dot.
std::string_view parent_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return name.substr(0, dot == std::string_view::npos ? 0 : dot + 1);
}

bool has_values(const TensorIndex& index, const std::string& name) {
  const auto at = index.find(name);
  return at && (is_small_float(index[*at].dtype) || is_packed(index[*at].dtype));
}

/// Returns the number of blocks of this size: one scale for each.
constexpr std::uint64_t blocks_in(std::uint64_t size, std::uint64_t block) {
  return size / block + (size % block == 0 ? 0 : 1);
}

bool fits(std::span<const std::uint64_t> shape, std::span<const std::uint64_t> scales,
          std::span<const std::uint64_t> blocks) {
  if (scales.size() != shape.size()) return false;
  for (std::size_t at = 0; at < shape.size(); ++at) {
    if (scales[at] != blocks_in(shape[at], blocks[at])) return false;
  }
  return true;
}

/// Returns the blocks of the first row of the table that the shapes fit.
std::optional<std::vector<std::uint64_t>> blocks_of(const Tensor& tensor, const Tensor& scales,
                                                    std::string_view end) {
  const auto shape = tensor.shape;
  if (element_count(shape) == 0) return std::vector(shape.begin(), shape.end());
  std::vector<std::uint64_t> blocks(shape.size(), 1);
  const bool is_mx = scales.dtype == Dtype::F8_E8M0 && (end == "_scale" || end == "_scales");
  if (is_mx && !shape.empty() && shape.back() % kMxBlock == 0) {
    blocks.back() = kMxBlock;
    if (fits(shape, scales.shape, blocks)) return blocks;
  }
  if (end == "_scales") return std::nullopt;
  if (element_count(scales.shape) == 1) return std::vector(shape.begin(), shape.end());
  if (shape.size() < 2) return std::nullopt;
  if (end == "_scale" && shape.size() == 2) {
    blocks = {1, shape[1]};
    if (fits(shape, scales.shape, blocks)) return blocks;
  }
  if (tensor.dtype == Dtype::F4) return std::nullopt;  // NVFP4 and others have other blocks
  blocks.assign(shape.size(), 1);
  blocks[shape.size() - 2] = blocks.back() = kBlock;
  return fits(shape, scales.shape, blocks) ? std::optional(blocks) : std::nullopt;
}

std::string text_of(const Tensor& tensor) {
  return fmt::format("{} ({} {})", tools::printable_name(tensor.name), name_of(tensor.dtype),
                     shape_text(tensor.shape));
}

}  // namespace

bool is_scale(const TensorIndex& index, const Tensor& tensor) {
  if (tensor.dtype == Dtype::F8_E8M0) return true;
  const std::string_view name = tensor.name;
  const std::string_view parent = parent_of(name);
  const std::string_view last = name.substr(parent.size());
  if (last.find("scale") == std::string_view::npos && last != "absmax") return false;
  if (std::ranges::find(kScaleNames, last) != kScaleNames.end()) return true;
  for (const std::string_view end : kScaleEnds) {
    if (!name.ends_with(end)) continue;
    for (const std::string_view value_end : kValueEnds) {
      if (has_values(index, fmt::format("{}{}", name.substr(0, name.size() - end.size()), value_end))) {
        return true;
      }
    }
  }
  return std::ranges::any_of(kValueNames, [&](std::string_view value) {
    return has_values(index, fmt::format("{}{}", parent, value));
  });
}

std::vector<std::uint32_t> scales_of(const TensorIndex& index, const Tensor& tensor) {
  std::vector<std::uint32_t> found;
  if (!is_small_float(tensor.dtype) || is_scale(index, tensor)) return found;
  const auto take = [&](const std::string& name) {
    if (const auto at = index.find(name)) found.push_back(*at);
  };
  for (const std::string_view end : kScaleEnds) take(fmt::format("{}{}", tensor.name, end));
  const std::string_view parent = parent_of(tensor.name);
  if (tensor.name.substr(parent.size()) == "weight") {
    for (const std::string_view name : kScalesOfWeight) take(fmt::format("{}{}", parent, name));
  }
  return found;
}

std::string needs_scales_text(const TensorIndex& index, const Tensor& tensor, std::size_t more) {
  const Tensor scales = index[scales_of(index, tensor).front()];
  return fmt::format(
      "{} is {} and needs its scales {}{}", tools::printable_name(tensor.name), name_of(tensor.dtype),
      tools::printable_name(scales.name),
      more == 0 ? "" : fmt::format(", and {} more {} alike", tools::grouped(more), more == 1 ? "is" : "are"));
}

Result<TensorScales> known_scales_of(const TensorIndex& index, const Tensor& tensor) {
  const std::vector<std::uint32_t> found = scales_of(index, tensor);
  const auto refuse = [](std::string why) {
    return fail(ErrorCode::InvalidArgument, EINVAL, std::move(why));
  };
  if (found.size() != 1) {
    std::string list;
    for (const std::uint32_t at : found) list += (list.empty() ? "" : " and ") + text_of(index[at]);
    return refuse(
        fmt::format("{}: has the scales {}, and how these act together is not known", text_of(tensor), list));
  }
  const Tensor scales = index[found.front()];
  std::string_view end = "_scale_inv";  // the same as P.scale
  if (scales.name.starts_with(tensor.name)) end = scales.name.substr(tensor.name.size());
  if (scales.name.ends_with(".scales")) end = "_scales";
  if (scales.name.ends_with(".w_scale")) end = "w_scale";
  const bool is_known_end = end == "_scale_inv" || end == "_scale" || end == "_scales";
  const bool is_float = scales.dtype == Dtype::F32 || scales.dtype == Dtype::BF16 ||
                        scales.dtype == Dtype::F16 || scales.dtype == Dtype::F8_E8M0;
  auto blocks = is_known_end && is_float ? blocks_of(tensor, scales, end) : std::nullopt;
  if (blocks) return TensorScales{found.front(), std::move(*blocks)};
  return refuse(
      fmt::format("{}: what each element of {} multiplies is not known", text_of(tensor), text_of(scales)));
}

std::optional<std::string> packed_fault(const TensorIndex& index, const Tensor& tensor) {
  if (!is_packed(tensor.dtype) || is_scale(index, tensor)) return std::nullopt;
  std::string_view name = tensor.name;
  for (const std::string_view end : {"_blocks"sv, "_packed"sv}) {
    if (name.ends_with(end)) name.remove_suffix(end.size());
  }
  const std::string_view parent = parent_of(name);
  const std::string_view last = std::string_view(tensor.name).substr(parent.size());
  std::vector<std::string> candidates;
  for (const std::string_view end : kScaleEnds) candidates.push_back(fmt::format("{}{}", name, end));
  if (std::ranges::find(kValueNames, last) != kValueNames.end()) {
    candidates.push_back(fmt::format("{}scale", parent));
    candidates.push_back(fmt::format("{}scales", parent));
  }
  for (const std::string& candidate : candidates) {
    if (const auto at = index.find(candidate)) {
      return fmt::format("{}: holds quantized values with the scales {}, and how to unpack them is not known",
                         text_of(tensor), text_of(index[*at]));
    }
  }
  return std::nullopt;
}

void apply_scales(std::span<const std::uint64_t> shape, std::span<const std::uint64_t> blocks,
                  std::span<const float> scales, std::uint64_t first, std::span<float> values) {
  if (scales.size() == 1) {
    for (float& value : values) value *= scales.front();
    return;
  }
  const std::uint64_t columns = shape.back();
  const std::uint64_t column_block = blocks.back();
  for (std::size_t done = 0; done < values.size();) {
    // The scales of this row: the place of its block in each dimension, the last but one first.
    std::uint64_t row = (first + done) / columns;
    std::uint64_t stride = blocks_in(columns, column_block);
    std::uint64_t at = 0;
    for (std::size_t dimension = shape.size() - 1; dimension-- > 0;) {
      at += row % shape[dimension] / blocks[dimension] * stride;
      row /= shape[dimension];
      stride *= blocks_in(shape[dimension], blocks[dimension]);
    }
    std::uint64_t column = (first + done) % columns;
    while (column < columns && done < values.size()) {
      const std::uint64_t block = column / column_block;
      const std::uint64_t end = std::min(columns, (block + 1) * column_block);
      const std::uint64_t count = std::min<std::uint64_t>(end - column, values.size() - done);
      for (float& value : values.subspan(done, count)) value *= scales[at + block];
      column += count;
      done += count;
    }
  }
}

}  // namespace stfs::device
