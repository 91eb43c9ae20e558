// Makes generations from archives: the first one, and those that follow, which share memory with the one
// before.
//
// A generation holds exactly one committed state. No byte is read while another process may be writing
// (check_settled()); after the upload, archives and states must be as they were before it. Otherwise nothing
// is kept, and the caller tries again.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/error.h"
#include "core/base/work.h"
#include "tools/serve/model_state.h"
#include "tools/serve/served_layout.h"
#include "tools/upload/upload.h"

namespace stfs::upload {

/// A generation, and what is needed to make the next one.
struct Generation {
  std::uint64_t number = 0;
  Plan plan;
  ServedLayout layout;
  std::vector<ModelState> states;     // one for each of plan.models
  UploadReport report;                // of what was uploaded for it
  std::uint64_t changed_tensors = 0;  // the number of tensors whose bytes it has brought
};

/// For one thread at a time.
class GenerationMaker {
 public:
  /// The arenas will be shareable, whatever the options say.
  GenerationMaker(PlanRequest request, UploadOptions options);

  /// Plans again and makes the next generation. If the structure of the archives is that of `before`, uploads
  /// only the tensors that have changed: those that the weight sync names, or else those that differ when
  /// compared. Otherwise uploads all tensors into memory of their own.
  /// @param before  the generation before; null: make the first one.
  /// @return EAGAIN: another process is writing; ESTALE: the archives have changed during the upload: in both
  ///         cases try again; ECANCELED if the work is stopped; the errors of make_plan() and of Upload.
  Result<Generation> make(Work& work, const Generation* before);

  /// Fails with ESTALE if the archives or their states are no longer those of the generation.
  static Result<void> check(const Generation& generation);
  /// The files to watch for the next generation.
  static std::vector<std::filesystem::path> files(const Generation& generation);

 private:
  Result<Generation> make_whole(Generation next, Work& work);
  Result<Generation> make_next(Generation next, Work& work, const Generation& before);
  Result<std::vector<bool>> find_changed(const Generation& next, Work& work, const Generation& before);
  Result<Resident> upload(Plan plan, Work& work);

  PlanRequest request_;
  UploadOptions options_;
};

}  // namespace stfs::upload
