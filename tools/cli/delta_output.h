// Writes deltas (core/model/delta.h), and checks that a delta's base has the bytes that it was made for.
#pragma once

#include <filesystem>

#include "core/base/error.h"
#include "core/model/model.h"
#include "tools/cli/diff_report.h"
#include "tools/cli/verb.h"

namespace stfs::tools {

struct DeltaOutput {
  std::filesystem::path path;
  bool is_replacing = false;  // replace a file that exists
};

/// Writes the delta that turns A into B. Reads all tensors that B keeps from A, for their digest. A user who
/// may not read all files of A and B may not read the delta.
/// @param report  of all tensors of two whole models, without problems.
/// @return EINVAL: B is a delta itself. ESTALE: A or B has changed since it was opened. EINTR if
///   interrupted() (interrupt.h). After a failure nothing is written.
Result<WrittenDelta> write_delta(const DiffReport& report, const DeltaOutput& output, Streams& streams);

/// Reads all tensors that a model with a delta keeps from its base. EINVAL: their bytes differ from the bytes
/// that the delta was made for. EINTR if interrupted().
Result<void> check_base_bytes(const Model& model, Streams& streams);

/// Does the same in the quickest way (core/model/delta_base.h): the base is read only if its files have other
/// sizes or times.
Result<void> check_base_of(const Model& model, Streams& streams);

}  // namespace stfs::tools
