// Merges a delta into its base, in place: for stfs commit and stfs apply.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "core/model/delta.h"
#include "core/model/delta_base.h"
#include "core/model/model.h"
#include "tools/cli/change_options.h"
#include "tools/cli/verb.h"

namespace stfs::tools {

/// The delta as an ordinary archive, and its keys.
struct OpenDelta {
  std::string named;  // by the user
  std::unique_ptr<Model> model;
  Delta keys;
};

/// Opens a delta that stfs diff --out or a mount has written.
Result<OpenDelta> open_delta(const std::string& named);

/// Opens the base for reading, with the delta on top, and checks that it has the bytes that the delta was
/// made for.
Result<std::unique_ptr<Model>> open_variant(const std::string& base, const OpenDelta& delta,
                                            Streams& streams);

struct DeltaCommit {
  std::string base;
  EditOptions options;
  bool keeps_metadata = false;  // the base keeps its metadata
  /// Checks the base that was opened, before anything of it changes. Optional.
  std::function<Result<void>(const Model& base)> check_base{};
};

/// Makes all changes of the delta in its base as one, and prints them. For attempt_beside_others().
/// @return the exit code, or a failure that was not reported.
Result<int> commit_delta(const DeltaCommit& commit, const OpenDelta& delta, Streams& streams);

}  // namespace stfs::tools
