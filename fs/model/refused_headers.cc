#include "fs/model/refused_headers.h"

#include <utility>

namespace stfs {
namespace {

std::int64_t nanoseconds(const timespec& time) {
  constexpr std::int64_t kPerSecond = 1'000'000'000;
  return std::int64_t{time.tv_sec} * kPerSecond + time.tv_nsec;
}

}  // namespace

RefusedHeaders::State RefusedHeaders::state_of(const struct stat& file) {
  return {.device = file.st_dev,
          .inode = file.st_ino,
          .size_bytes = file.st_size,
          .modified_ns = nanoseconds(file.st_mtim),
          .changed_ns = nanoseconds(file.st_ctim)};
}

void RefusedHeaders::begin_pass() {
  for (const State& file : fresh_) now_.erase(file);
  before_ = std::exchange(now_, {});
  fresh_.clear();
  spent_ = {};
}

bool RefusedHeaders::has(const struct stat& file) {
  const State state = state_of(file);
  if (now_.contains(state)) return true;
  if (!before_.contains(state)) return false;
  now_.insert(state);
  return true;
}

void RefusedHeaders::note(const struct stat& file, const Error& error, Clock::duration spent,
                          std::chrono::system_clock::time_point now) {
  spent_ += spent;
  // Other errors end without a change of the file.
  if (error.code > ErrorCode::DuplicateKey || !S_ISREG(file.st_mode)) return;
  const State state = state_of(file);
  now_.insert(state);
  const auto age = now.time_since_epoch() - std::chrono::nanoseconds(state.changed_ns);
  if (age < kSettled) fresh_.insert(state);
}

}  // namespace stfs
