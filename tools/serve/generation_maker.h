// Makes generations from archives. Each generation after the first shares memory with the previous one.
//
// A generation holds exactly one committed state. No byte is read while another process may be writing
// (check_settled()). After the upload, archives and states must be the same as before it. Otherwise the
// result is dropped, and the caller tries again.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/error.h"
#include "core/base/work.h"
#include "tools/serve/model_state.h"
#include "tools/serve/served_layout.h"
#include "tools/upload/upload.h"

namespace stfs::serve {

/// A generation, and the data that the next one is made from.
struct Generation {
  std::uint64_t number = 0;
  upload::Plan plan;
  ServedLayout layout;
  std::vector<ModelState> states;     // one for each of plan.models
  upload::UploadReport report;        // of the upload for this generation
  std::uint64_t changed_tensors = 0;  // the number of tensors that changed with this generation
};

/// Used by one thread at a time.
class GenerationMaker {
 public:
  /// The arenas will be shareable, even if the options do not ask for that.
  GenerationMaker(upload::PlanRequest request, upload::UploadOptions options);

  /// Plans again and makes the next generation. If the archives have the same structure as in `before`,
  /// uploads only the tensors that have changed: the tensors that the weight sync names, or else the tensors
  /// that a comparison finds. Otherwise uploads all tensors into new memory.
  /// @param before  the previous generation; null: make the first one.
  /// @return EAGAIN: another process is writing; ESTALE: the archives changed during the upload: in both
  ///         cases try again; ECANCELED: the work was stopped; the errors of make_plan() and of Upload.
  Result<Generation> make(Work& work, const Generation* before);

  /// Fails with ESTALE if the archives or their states have changed since the generation was made.
  static Result<void> check(const Generation& generation);
  /// Returns the files to watch for the next generation.
  static std::vector<std::filesystem::path> files(const Generation& generation);

 private:
  Result<Generation> make_whole(Generation next, Work& work);
  Result<Generation> make_next(Generation next, Work& work, const Generation& before);
  Result<std::vector<bool>> find_changed(const Generation& next, Work& work, const Generation& before);
  Result<upload::Resident> upload(upload::Plan plan, Work& work);

  upload::PlanRequest request_;
  upload::UploadOptions options_;
};

}  // namespace stfs::serve
