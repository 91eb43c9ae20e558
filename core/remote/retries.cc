#include "core/remote/retries.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <thread>
#include <utility>

namespace stfs {
namespace {

std::chrono::milliseconds random_below(std::chrono::milliseconds most) {
  thread_local std::minstd_rand random(std::random_device{}());
  return std::chrono::milliseconds(
      std::uniform_int_distribution<std::int64_t>(most.count() / 2, most.count())(random));
}

/// Sleeps in short steps. @return false if the caller must end.
bool sleep(std::chrono::milliseconds pause, const Retries::IsEnding& is_ending) {
  constexpr std::chrono::milliseconds kStep{100};
  const Deadline until = deadline_in(pause);
  for (auto left = pause; left.count() > 0; left = time_left(until)) {
    if (is_ending && is_ending()) return false;
    std::this_thread::sleep_for(std::min(left, kStep));
  }
  return !is_ending || !is_ending();
}

}  // namespace

Result<void> Retries::wait(Error why, std::chrono::milliseconds least) {
  const bool is_offline = why.errno_value == ENETUNREACH;
  if (!is_offline) give_up_offline_.reset();
  if (is_offline && !give_up_offline_) give_up_offline_ = deadline_in(rules_.patience_offline);
  const auto wait = std::max(random_below(pause_), least);
  if (deadline_in(wait) > std::min(give_up_, give_up_offline_.value_or(give_up_))) {
    if (!is_offline)
      why.message +=
          fmt::format(", for {} s", std::chrono::ceil<std::chrono::seconds>(rules_.patience).count());
    return tl::unexpected(std::move(why));
  }
  if (!sleep(wait, is_ending_)) return fail(ErrorCode::System, ECANCELED, "the read was ended");
  pause_ = std::min(pause_ * 2, rules_.longest_pause);
  return {};
}

}  // namespace stfs
