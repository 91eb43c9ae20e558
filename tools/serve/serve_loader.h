// Uploads beside the server: the first generation, and another one whenever the archives have changed.
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

/// How far an upload has come, and whether it is still wanted.
struct LoadProgress {
  std::atomic<bool> is_cancelled = false;
  std::atomic<std::uint64_t> done_bytes = 0;
  std::atomic<std::uint64_t> total_bytes = 0;
};

/// Called on the loader's thread.
struct LoadSteps {
  /// Plans and uploads anew. ECANCELED where progress.is_cancelled.
  std::function<Result<Resident>(LoadProgress& progress)> load;
  /// Fails where the archives are no longer what was uploaded.
  std::function<Result<void>(const Plan& plan)> check;
};

/// Plans what is asked for, and uploads it to arenas that can be shared.
LoadSteps steps_for(PlanRequest request, UploadOptions options);

struct LoaderOptions {
  std::vector<std::string> sources = {};  // for the manifests
  /// How often the archives are looked at.
  std::chrono::milliseconds interval = std::chrono::seconds(1);
  /// After failures it waits twice as long each time, up to this.
  std::chrono::milliseconds max_pause = std::chrono::seconds(30);
};

struct Loaded {
  std::shared_ptr<const ServedModel> model;
  UploadReport report;
  std::vector<std::shared_ptr<const Model>> sources;  // that were read
};

class ServeLoader {
 public:
  /// Begins at once. Where the first upload fails there are no others.
  ServeLoader(LoadSteps steps, LoaderOptions options);
  /// Cancels what is under way and waits for that.
  ~ServeLoader();
  ServeLoader(const ServeLoader&) = delete;
  ServeLoader& operator=(const ServeLoader&) = delete;

  /// The next generation, or why there is none, in the order in which they came; nothing where there is no
  /// news.
  std::optional<Result<Loaded>> take();
  /// To be polled: readable while take() has something.
  [[nodiscard]] int descriptor() const { return ready_.get(); }
  [[nodiscard]] const LoadProgress& progress() const { return progress_; }

 private:
  void work();
  Result<Loaded> load(std::uint64_t generation, std::optional<Plan>& plan);
  void deliver(Result<Loaded> loaded);
  /// @return false: it is to end.
  bool pause(std::chrono::milliseconds duration);

  LoadSteps steps_;
  LoaderOptions options_;
  UniqueFd ready_;
  LoadProgress progress_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable stopped_;
  bool is_stopping_ = false;
  std::deque<Result<Loaded>> outcomes_;
  std::thread thread_;
};

}  // namespace stfs::upload
