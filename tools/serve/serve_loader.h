// Makes generations in a thread beside the server: the first one, then one more after each change of the
// archives or of their weight sync.
//
// inotify reports changes to the loader. For writers on other hosts, the loader also checks the files again
// and again.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/base/unique_fd.h"
#include "core/model/file_watch.h"
#include "tools/serve/generation_maker.h"
#include "tools/serve/served_model.h"
#include "tools/upload/upload.h"

namespace stfs::serve {

/// The loader's thread calls these functions.
struct LoadSteps {
  /// GenerationMaker::make().
  std::function<Result<Generation>(Work& work, const Generation* before)> load;
  /// GenerationMaker::check().
  std::function<Result<void>(const Generation& generation)> check;
  /// GenerationMaker::files().
  std::function<std::vector<std::filesystem::path>(const Generation& generation)> files;
};

/// Returns steps that carry out the request.
LoadSteps steps_for(upload::PlanRequest request, upload::UploadOptions options);

struct LoaderOptions {
  std::vector<std::string> sources = {};  // for the manifests
  /// False: the first generation is the only one.
  bool follows = true;
  /// The interval between checks of the archives, for changes that inotify does not report.
  std::chrono::milliseconds interval = std::chrono::seconds(1);
  /// After each failure the loader waits twice as long, up to this limit. A lost device ends the loader.
  std::chrono::milliseconds max_pause = std::chrono::seconds(30);
  /// The time for which other programs may keep changing the archives before the loader reports a failure.
  std::chrono::milliseconds patience = std::chrono::seconds(30);
};

struct Loaded {
  std::shared_ptr<const ServedModel> model;
  upload::UploadReport report;
  std::uint64_t changed_tensors = 0;  // the number of tensors that changed with this generation
  std::vector<std::shared_ptr<const Model>> sources;  // the models that were read
};

class ServeLoader {
 public:
  /// Starts the first upload at once. If it fails, no others follow. Throws std::system_error if the process
  /// has no descriptor or no thread left.
  ServeLoader(LoadSteps steps, LoaderOptions options);
  /// Cancels the running upload and waits for its end.
  ~ServeLoader();
  ServeLoader(const ServeLoader&) = delete;
  ServeLoader& operator=(const ServeLoader&) = delete;

  /// Returns the next outcome, oldest first: a generation, or the reason why there is none. Returns nothing
  /// without news.
  std::optional<Result<Loaded>> take();
  /// A descriptor for poll(2): readable while take() has something to return.
  [[nodiscard]] int descriptor() const { return ready_.get(); }
  [[nodiscard]] const Work& progress() const { return progress_; }

 private:
  void work();
  Result<Loaded> load();
  void deliver(Result<Loaded> loaded);
  /// Waits for an event of the watched files, if `wakes_at_events`, or for the end of `duration`.
  /// @return false if the loader must end.
  [[nodiscard]] bool pause(std::chrono::milliseconds duration, bool wakes_at_events);

  LoadSteps steps_;
  LoaderOptions options_;
  UniqueFd ready_;
  UniqueFd stop_;
  Work progress_;  // of the present load
  Mutex mutex_;
  std::deque<Result<Loaded>> outcomes_ GUARDED_BY(mutex_);
  // Only the thread uses these:
  FileWatch watch_;
  std::optional<Generation> newest_;
  std::optional<Generation> former_;  // its large maps are unmapped after the newest one is delivered
  std::uint64_t server_ = 0;          // see ServedIdentity

  std::thread thread_;
};

}  // namespace stfs::serve
