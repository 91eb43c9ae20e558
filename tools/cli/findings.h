// Collects the problems of tensors that were read.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model.h"
#include "tools/cli/sums_file.h"
#include "tools/cli/tensor_scan.h"

namespace stfs::tools {

struct Finding {
  std::string name;  // the tensor's name
  /// Any of "unreadable", "checksum", "dtype", "shape", "missing", "added", "nan" and "infinite".
  std::vector<std::string_view> kinds;
  /// For people: "other checksum: ... came; ... was recorded".
  std::string text;
};
using Findings = std::vector<Finding>;

/// Adds the tensors that could not be read.
void find_unreadable(const Model& model, std::span<const TensorScan> scans, Findings& findings);

/// Adds the tensors that have NaNs or infinities.
void find_non_finite(const Model& model, std::span<const TensorScan> scans, Findings& findings);

/// Adds the tensors that differ from the record or are not in the record.
void find_changed(const Model& model, std::span<const TensorScan> scans, const Sums& recorded,
                  Findings& findings);

/// Adds the tensors that are in the record but not in the model.
void find_missing(const Model& model, const Sums& recorded, Findings& findings);

}  // namespace stfs::tools
