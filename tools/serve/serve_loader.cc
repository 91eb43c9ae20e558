// The loader's thread.
#include "tools/serve/serve_loader.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace stfs::upload {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{2};

/// Runs one upload. The upload has threads of its own; this thread watches it.
Result<Resident> run_upload(Plan plan, const UploadOptions& options, LoadProgress& progress) {
  auto upload = Upload::start(std::move(plan), options);
  if (!upload) return pass_on(std::move(upload));
  while (!(*upload)->is_done()) {
    if (progress.is_cancelled) (*upload)->cancel();
    const UploadProgress so_far = (*upload)->progress();
    progress.total_bytes = so_far.total_bytes;
    progress.done_bytes = so_far.done_bytes;
    std::this_thread::sleep_for(kProgressInterval);
  }
  return (*upload)->wait();
}

}  // namespace

LoadSteps steps_for(PlanRequest request, UploadOptions options) {
  options.is_shareable = true;
  const auto load = [request = std::move(request), options](LoadProgress& progress) -> Result<Resident> {
    auto plan = make_plan(request);
    if (!plan) return pass_on(std::move(plan));
    return run_upload(std::move(*plan), options, progress);
  };
  return {load, check_unchanged};
}

ServeLoader::ServeLoader(LoadSteps steps, LoaderOptions options)
    : steps_(std::move(steps)),
      options_(std::move(options)),
      ready_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (ready_.get() < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  thread_ = std::thread([this] { work(); });
}

ServeLoader::~ServeLoader() {
  progress_.is_cancelled = true;
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

std::optional<Result<Loaded>> ServeLoader::take() {
  const std::lock_guard lock(mutex_);
  if (outcomes_.empty()) return std::nullopt;
  auto outcome = std::move(outcomes_.front());
  outcomes_.pop_front();
  eventfd_t ignored = 0;
  if (outcomes_.empty()) ::eventfd_read(ready_.get(), &ignored);
  return outcome;
}

void ServeLoader::work() {
  std::optional<Plan> plan;  // of the last upload
  std::uint64_t generation = 1;
  auto duration = options_.interval;
  do {
    if (plan && steps_.check(*plan)) {
      duration = options_.interval;
      continue;
    }
    auto loaded = load(generation, plan);
    if (progress_.is_cancelled) return;
    if (loaded) {
      ++generation;
      duration = options_.interval;
    } else {
      duration = std::min(2 * duration, options_.max_pause);
    }
    deliver(std::move(loaded));
    if (!plan) return;
  } while (pause(duration));
}

Result<Loaded> ServeLoader::load(std::uint64_t generation, std::optional<Plan>& plan) {
  return guard_memory([&]() -> Result<Loaded> {
    auto resident = steps_.load(progress_);
    if (!resident) return pass_on(std::move(resident));
    auto model = ServedModel::make(generation, options_.sources, std::move(resident->arenas), resident->plan);
    if (!model) return pass_on(std::move(model));
    plan = std::move(resident->plan);
    return Loaded{std::move(*model), resident->report, plan->models};
  });
}

void ServeLoader::deliver(Result<Loaded> loaded) {
  const std::lock_guard lock(mutex_);
  outcomes_.push_back(std::move(loaded));
  ::eventfd_write(ready_.get(), 1);
}

bool ServeLoader::pause(std::chrono::milliseconds duration) {
  std::unique_lock lock(mutex_);
  return !stopped_.wait_for(lock, duration, [this] { return is_stopping_; });
}

}  // namespace stfs::upload
