// The loader's thread.
#include "tools/serve/serve_loader.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <system_error>
#include <utility>

#include "core/base/mutex.h"

namespace stfs::serve {
namespace {

using Clock = std::chrono::steady_clock;

// A commit takes from milliseconds to minutes: the pauses between checks grow with its time.
constexpr std::chrono::milliseconds kFirstLook{1};
constexpr std::chrono::milliseconds kLastLook{50};

UniqueFd event_descriptor() {
  UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) throw std::system_error(errno, std::generic_category(), "eventfd");
  return event;
}

std::uint64_t random_number() {
  std::random_device source;
  return (std::uint64_t{source()} << 32U) | source();
}

/// Returns true if other programs are changing the archives: the next try may succeed.
bool is_unsettled(const Error& error) {
  return error.errno_value == EAGAIN || error.errno_value == ESTALE;
}

}  // namespace

LoadSteps steps_for(upload::PlanRequest request, upload::UploadOptions options) {
  const auto maker = std::make_shared<GenerationMaker>(std::move(request), std::move(options));
  return {[maker](Work& work, const Generation* before) { return maker->make(work, before); },
          GenerationMaker::check, GenerationMaker::files};
}

ServeLoader::ServeLoader(LoadSteps steps, LoaderOptions options)
    : steps_(std::move(steps)),
      options_(std::move(options)),
      ready_(event_descriptor()),
      stop_(event_descriptor()),
      server_(random_number()) {
  thread_ = std::thread([this] { work(); });
}

ServeLoader::~ServeLoader() {
  progress_.stop();
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

std::optional<Result<Loaded>> ServeLoader::take() {
  const MutexLock lock(mutex_);
  if (outcomes_.empty()) return std::nullopt;
  auto outcome = std::move(outcomes_.front());
  outcomes_.pop_front();
  eventfd_t ignored = 0;
  if (outcomes_.empty()) ::eventfd_read(ready_.get(), &ignored);
  return outcome;
}

void ServeLoader::work() {
  auto failed_pause = options_.interval;
  Clock::time_point unsettled_since{};  // the epoch: the archives are settled
  for (;;) {
    if (newest_ && steps_.check(*newest_)) {
      failed_pause = options_.interval;
      unsettled_since = {};
      if (!pause(options_.interval, true)) return;
      continue;
    }
    auto loaded = load();
    if (progress_.is_stopped()) return;
    if (!loaded && is_unsettled(loaded.error())) {
      const auto now = Clock::now();
      if (unsettled_since == Clock::time_point{}) unsettled_since = now;
      const auto lasts = std::chrono::duration_cast<std::chrono::milliseconds>(now - unsettled_since);
      if (lasts < options_.patience) {
        if (!pause(std::clamp(lasts / 8, kFirstLook, kLastLook), false)) return;
        continue;
      }
    }
    unsettled_since = {};
    const bool is_loaded = loaded.has_value();
    const bool is_lost = !is_loaded && device::is_device_lost(loaded.error());
    deliver(std::move(loaded));
    former_.reset();
    if (!newest_ || !options_.follows || is_lost) return;
    if (is_loaded) {
      failed_pause = options_.interval;
      // The next round checks at once: the files may have changed before they were watched.
      static_cast<void>(watch_.watch(steps_.files(*newest_)));
      continue;
    }
    failed_pause = std::min(2 * failed_pause, options_.max_pause);
    if (!pause(failed_pause, true)) return;
  }
}

Result<Loaded> ServeLoader::load() {
  return guard_memory([&]() -> Result<Loaded> {
    auto made = steps_.load(progress_, newest_ ? &*newest_ : nullptr);
    RETURN_IF_ERROR(made);
    const ServedIdentity identity = {.generation = made->number,
                                     .server = server_,
                                     .sources = options_.sources,
                                     .version = version_text(made->states)};
    auto model = ServedModel::make(identity, made->layout, made->plan);
    RETURN_IF_ERROR(model);
    former_ = std::exchange(newest_, std::move(*made));
    return Loaded{std::move(*model), newest_->report, newest_->changed_tensors, newest_->plan.models};
  });
}

void ServeLoader::deliver(Result<Loaded> loaded) {
  const MutexLock lock(mutex_);
  outcomes_.push_back(std::move(loaded));
  ::eventfd_write(ready_.get(), 1);
}

bool ServeLoader::pause(std::chrono::milliseconds duration, bool wakes_at_events) {
  const auto deadline = Clock::now() + duration;
  std::array<pollfd, 2> waits = {pollfd{stop_.get(), POLLIN, 0},
                                 pollfd{wakes_at_events ? watch_.descriptor() : -1, POLLIN, 0}};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    const int ready = ::poll(waits.data(), waits.size(), static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (waits[0].revents != 0) return false;
    if (waits[1].revents == 0) return true;
    std::set<std::size_t> files;
    watch_.take_events(files);
    // The directories also have other files.
    if (!files.empty()) return true;
  }
}

}  // namespace stfs::serve
