// Finds the differences of two models in their headers: names, dtypes, shapes and metadata.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/model/model.h"
#include "tools/compare/name_globs.h"
#include "tools/compare/tensor_comparison.h"

namespace stfs::tools {

struct HeaderDifference {
  /// Positions of the tensor in A and in B; nothing in the model that lacks it.
  std::optional<std::uint32_t> a;
  std::optional<std::uint32_t> b;
  /// "only_in_a" or "only_in_b", or one or both of "dtype" and "shape", or "renamed" (renamed_tensors.h):
  /// only the names differ.
  std::vector<std::string_view> kinds;
};

/// A key of __metadata__ that one model lacks, or that has two values. The models own the texts.
struct MetadataDifference {
  std::string_view key;
  std::optional<std::string_view> a;
  std::optional<std::string_view> b;
};

struct ModelDifference {
  std::vector<HeaderDifference> tensors;     // in the order of A's data, then of B's
  std::vector<MetadataDifference> metadata;  // in the order of A's header, then of B's
  std::vector<TensorPair> pairs;             // all others, in the order of A's data
};

/// A model that is compared, which must outlive the result.
struct ComparedModel {
  const Model& model;
  std::optional<std::uint32_t> tensor{};  // set: only this tensor, named by its file in a mount
};

/// Compares the tensors that match `globs`. If A or B is one tensor's file in a mount, compares only this
/// tensor: with the other file's tensor, or with the tensor of the same name. Compares metadata only if
/// neither globs nor such a file select tensors. The result refers to the models.
ModelDifference difference_of(const ComparedModel& a, const ComparedModel& b, NameGlobs& globs);

}  // namespace stfs::tools
