// Runs uploads in a thread beside the server: the first generation, then one more after each change of the
// archives.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/unique_fd.h"
#include "tools/serve/served_model.h"
#include "tools/upload/upload.h"

namespace stfs::upload {

/// The progress of an upload, and a request to cancel it.
struct LoadProgress {
  std::atomic<bool> is_cancelled = false;
  std::atomic<std::uint64_t> done_bytes = 0;
  std::atomic<std::uint64_t> total_bytes = 0;
};

/// Called on the loader's thread.
struct LoadSteps {
  /// Plans and uploads again. ECANCELED if progress.is_cancelled.
  std::function<Result<Resident>(LoadProgress& progress)> load;
  /// Fails if the archives are no longer those that were uploaded.
  std::function<Result<void>(const Plan& plan)> check;
};

/// Returns steps that carry out the request and upload to shareable arenas.
LoadSteps steps_for(PlanRequest request, UploadOptions options);

struct LoaderOptions {
  std::vector<std::string> sources = {};  // for the manifests
  /// The interval between checks of the archives.
  std::chrono::milliseconds interval = std::chrono::seconds(1);
  /// After each failure the loader waits twice as long, up to this limit.
  std::chrono::milliseconds max_pause = std::chrono::seconds(30);
};

struct Loaded {
  std::shared_ptr<const ServedModel> model;
  UploadReport report;
  std::vector<std::shared_ptr<const Model>> sources;  // the models that were read
};

class ServeLoader {
 public:
  /// Starts the first upload at once. If the first upload fails, there are no others. Throws
  /// std::system_error if the process has no descriptor or no thread left.
  ServeLoader(LoadSteps steps, LoaderOptions options);
  /// Cancels the running upload and waits for its end.
  ~ServeLoader();
  ServeLoader(const ServeLoader&) = delete;
  ServeLoader& operator=(const ServeLoader&) = delete;

  /// Returns the next outcome, oldest first: a generation, or the reason why there is none. Returns nothing
  /// if there is no news.
  std::optional<Result<Loaded>> take();
  /// A descriptor for poll(2): readable while take() has something to return.
  [[nodiscard]] int descriptor() const { return ready_.get(); }
  [[nodiscard]] const LoadProgress& progress() const { return progress_; }

 private:
  void work();
  Result<Loaded> load(std::uint64_t generation, std::optional<Plan>& plan);
  void deliver(Result<Loaded> loaded);
  /// @return false if the loader must end.
  bool pause(std::chrono::milliseconds duration);

  LoadSteps steps_;
  LoaderOptions options_;
  UniqueFd ready_;
  LoadProgress progress_;
  std::mutex mutex_;  // guards is_stopping_ and outcomes_
  std::condition_variable stopped_;
  bool is_stopping_ = false;
  std::deque<Result<Loaded>> outcomes_;
  std::thread thread_;
};

}  // namespace stfs::upload
