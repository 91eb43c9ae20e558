// Compares tensors of two models, several at a time: their bytes, and then their elements as numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/base/work.h"
#include "core/model/model.h"
#include "tools/compare/element_statistics.h"

namespace stfs::tools {

/// Positions of two tensors with the same dtype and shape, in two models.
struct TensorPair {
  std::uint32_t a = 0;
  std::uint32_t b = 0;
};

struct TensorComparison {
  bool is_different = false;
  /// Set if the tensors differ, statistics were requested, and both tensors were read to their ends.
  std::optional<ElementStatistics> statistics;
  /// The reason why bytes could not be compared. A difference may have been found before or behind these
  /// bytes.
  std::optional<Error> failure;
  bool is_failure_of_b = false;  // true: B's tensor failed; false: A's
};

struct ComparisonOptions {
  std::uint64_t threads = 1;
  bool has_statistics = true;
  Work* work = nullptr;  // null: no watch
};

/// Two models, which must outlive the call. A and B may be the same model.
struct ModelPair {
  const Model& a;
  const Model& b;
};

/// Reads each pair of tensors up to the first difference that is found, unless both are in files of a server
/// that have the same version (File::version()). Then reads the tensors that differ
/// once more, from their beginnings, for their statistics. Several threads compare the parts of a tensor, so
/// one large tensor keeps all of them busy. Memory does not grow with the tensors' size, apart from about 100
/// bytes for each 24 MiB that differ. The results do not depend on the number of threads. A tensor that
/// cannot be read does not stop the others.
/// @return one result for each pair, in the order of `pairs`; EINTR if the work is stopped.
Result<std::vector<TensorComparison>> compare_tensors(const ModelPair& models,
                                                      std::span<const TensorPair> pairs,
                                                      const ComparisonOptions& options);

}  // namespace stfs::tools
