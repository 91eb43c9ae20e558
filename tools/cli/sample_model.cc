// The shapes and names of the sample model.
#include "tools/cli/sample_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "tools/text/quantity.h"

namespace stfs::tools {
namespace {

using namespace std::string_literals;

constexpr std::uint64_t kSmallestVocabulary = 256;

std::uint64_t feed_forward_width(std::uint64_t hidden) {
  return hidden * 8 / 3 / 8 * 8;
}

void append_layer(std::vector<TensorSpec>& to, std::uint64_t number, std::uint64_t hidden) {
  const std::uint64_t wide = feed_forward_width(hidden);
  const std::uint64_t narrow = hidden / 4;
  const auto add = [&](std::string_view part, Dtype dtype, std::vector<std::uint64_t> shape) {
    to.push_back({fmt::format("model.layers.{}.{}.weight", number, part), dtype, std::move(shape)});
  };
  add("input_layernorm", Dtype::F32, {hidden});
  add("self_attn.q_proj", Dtype::BF16, {hidden, hidden});
  add("self_attn.k_proj", Dtype::BF16, {narrow, hidden});
  add("self_attn.v_proj", Dtype::BF16, {narrow, hidden});
  add("self_attn.o_proj", Dtype::BF16, {hidden, hidden});
  add("post_attention_layernorm", Dtype::F32, {hidden});
  add("mlp.gate_proj", Dtype::F16, {wide, hidden});
  add("mlp.up_proj", Dtype::F16, {wide, hidden});
  add("mlp.down_proj", Dtype::F16, {hidden, wide});
}

/// Returns a usual width for models of about that size.
std::uint64_t hidden_for(std::uint64_t data_bytes) {
  constexpr std::uint64_t kMebibyte = 1U << 20U;
  if (data_bytes < 8 * kMebibyte) return 64;
  if (data_bytes < 128 * kMebibyte) return 256;
  if (data_bytes < 2048 * kMebibyte) return 1024;
  return 4096;
}

std::vector<std::string> awkward_names() {
  return {
      "",                                // an empty file name
      ".",                               // two names that every directory already has
      "..",                              //
      ".safetensors",                    // the directory of the views
      "/",                               // paths
      "/etc/passwd",                     //
      "../escape",                       //
      "a/b",                             //
      "a//b",                            //
      "a",                               // a file and, in a tree, the directory of the next
      "a.b",                             //
      "a..b",                            // an empty component
      "%",                               // the escape character
      "100%",                            //
      "%2F",                             // reads as an escaped "/"
      "a%2Fb",                           // reads as an escaped "a/b"
      "~",                               // the character that marks cut names
      "-rf",                             // reads as an option
      "*",                               // reads as a pattern
      "[a]",                             //
      "with space",                      //
      " leading and trailing ",          //
      "new\nline",                       // control characters
      "tab\tand\rreturn",                //
      "\x1b[31mred\x1b[0m",              // would colour a terminal
      "nul\0byte"s,                      // ends a C string
      "quote\"and\\backslash",           //
      "gewicht.größe",                   // beyond ASCII: composed
      "gewicht.gro\u0308ße",             // decomposed: a different name that looks the same
      "重み.β",                          // wide characters
      "😀",                               // outside the first plane
      "right\u202eto left",              // a mark that reverses the following text
      std::string(255, 'x'),             // as long as a file name can be
      std::string(256, 'x'),             // longer
      std::string(300, 'x') + ".a",      // two names with the same first 300 bytes
      std::string(300, 'x') + ".b",      //
      std::string(254, 'y') + "\u00fc",  // a cut at byte 255 would split its last character
  };
}

}  // namespace

std::vector<TensorSpec> transformer(const SampleSize& size) {
  std::vector<TensorSpec> tensors;
  tensors.push_back({"model.embed_tokens.weight", Dtype::BF16, {size.vocabulary, size.hidden}});
  for (std::uint64_t number = 0; number < size.layers; ++number) append_layer(tensors, number, size.hidden);
  tensors.push_back({"model.norm.weight", Dtype::F32, {size.hidden}});
  tensors.push_back({"lm_head.weight", Dtype::BF16, {size.vocabulary, size.hidden}});
  return tensors;
}

std::vector<TensorSpec> specimens() {
  std::vector<TensorSpec> tensors;
  for (const Dtype dtype : all_dtypes()) {
    tensors.push_back({fmt::format("dtypes.{}", name_of(dtype)), dtype, {4, 8}});
  }
  tensors.push_back({"scalars.F32", Dtype::F32, {}});
  tensors.push_back({"scalars.BF16", Dtype::BF16, {}});
  tensors.push_back({"scalars.I64", Dtype::I64, {}});
  tensors.push_back({"scalars.BOOL", Dtype::BOOL, {}});
  tensors.push_back({"shapes.one", Dtype::F32, {1}});
  tensors.push_back({"shapes.deep", Dtype::U8, {1, 2, 1, 3, 1, 2, 1, 2}});
  tensors.push_back({"shapes.odd_bytes", Dtype::U8, {7}});  // the data after it have no alignment
  tensors.push_back({"empty.F32", Dtype::F32, {0}});
  tensors.push_back({"empty.rows", Dtype::BF16, {0, 64}});
  tensors.push_back({"empty.middle", Dtype::I64, {3, 0, 2}});
  for (const std::string& name : awkward_names()) tensors.push_back({name, Dtype::U8, {16}});
  return tensors;
}

std::uint64_t total_bytes(const std::vector<TensorSpec>& tensors) {
  std::uint64_t total = 0;
  for (const TensorSpec& tensor : tensors) total += data_size_bytes(tensor.dtype, tensor.shape).value_or(0);
  return total;
}

Result<SampleSize> sized_to(std::uint64_t data_bytes, std::uint64_t other_bytes, std::uint64_t hidden) {
  SampleSize size;
  size.hidden = hidden != 0 ? hidden : hidden_for(data_bytes);
  size.layers = 1;
  size.vocabulary = kSmallestVocabulary;
  const std::uint64_t smallest_bytes = total_bytes(transformer(size)) + other_bytes;
  if (data_bytes < smallest_bytes) {
    return fail(ErrorCode::InvalidArgument, EINVAL,
                fmt::format("--size: {} bytes are too few: with --hidden {} the smallest model has {}",
                            grouped(data_bytes), size.hidden, grouped(smallest_bytes)));
  }
  std::vector<TensorSpec> layer;
  append_layer(layer, 0, size.hidden);
  const std::uint64_t layer_bytes = total_bytes(layer);
  const std::uint64_t spare_bytes = data_bytes - smallest_bytes;
  size.layers += spare_bytes / layer_bytes;
  // Each word has two rows of BF16, in the embedding and in the head.
  size.vocabulary += spare_bytes % layer_bytes / (2 * 2 * size.hidden);
  return size;
}

}  // namespace stfs::tools
