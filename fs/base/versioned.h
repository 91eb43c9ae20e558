// Values that are replaced while calls use them, and the time when an old value is freed.
//
// An edit through the mount changes the set of tensors and their places. Values that depend on these are
// immutable: the model, its names, its views. The edit makes the next value and replaces the present one. A
// call that has begun earlier may still use the old value, so the old value stays until the last of these
// calls has ended.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/mutex.h"

namespace stfs {

/// Any thread may read; one thread at a time replaces. A value that a call has read stays valid while the
/// call has a pin of the Epochs that the old values are given to.
template <class T>
class Versioned {
 public:
  explicit Versioned(std::shared_ptr<T> first) : owner_(std::move(first)), present_(owner_.get()) {}

  T* operator->() const { return present_.load(std::memory_order_acquire); }
  T& operator*() const { return *present_.load(std::memory_order_acquire); }
  /// The present value. Only for the thread that replaces it.
  [[nodiscard]] const std::shared_ptr<T>& owner() const { return owner_; }
  /// @return the old value.
  [[nodiscard]] std::shared_ptr<T> replace(std::shared_ptr<T> next) noexcept {
    present_.store(next.get(), std::memory_order_release);
    return std::exchange(owner_, std::move(next));
  }

 private:
  std::shared_ptr<T> owner_;
  std::atomic<T*> present_;
};

/// Keeps replaced values for the calls that began earlier. Any thread may call; one thread at a time
/// replaces.
class Epochs {
 public:
  using Pin = std::shared_ptr<const void>;
  /// The number of a replacement.
  using Number = std::uint64_t;
  class Replacement;

  Epochs();

  /// The caller holds the pin for the length of a call, from before it reads the first value.
  [[nodiscard]] Pin pin() const {
    const MutexLock lock(state_->mutex);
    return present_;
  }
  [[nodiscard]] bool has_ended(Number number) const {
    const MutexLock lock(state_->mutex);
    return number < state_->first;
  }

 private:
  /// The values to free when an epoch and all earlier epochs have ended.
  struct Kept {
    bool has_ended = false;
    std::vector<std::shared_ptr<void>> values;
  };
  struct State {
    Mutex mutex;                             // innermost
    std::list<Kept> kept GUARDED_BY(mutex);  // from the oldest epoch that has not ended to the present one
    Number first GUARDED_BY(mutex) = 0;      // the number of the first epoch in kept
  };
  /// The time between two replacements. The pins of an epoch own it.
  struct Epoch {
    Epoch(std::shared_ptr<State> of, std::list<Kept>::iterator its) : state(std::move(of)), kept(its) {}
    ~Epoch() {
      std::list<Kept> free;  // destroyed without the lock
      const MutexLock lock(state->mutex);
      kept->has_ended = true;
      while (!state->kept.empty() && state->kept.front().has_ended) {
        free.splice(free.end(), state->kept, state->kept.begin());  // needs no memory
        ++state->first;
      }
    }
    Epoch(const Epoch&) = delete;
    Epoch& operator=(const Epoch&) = delete;
    const std::shared_ptr<State> state;
    const std::list<Kept>::iterator kept;
  };

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  Pin present_ GUARDED_BY(state_->mutex);
};

/// Values that are replaced together. Construct it, and all next values, before the first value is replaced,
/// because only the construction needs memory. Then no failure can leave only some of the values replaced, or
/// free a value that a call still uses.
class Epochs::Replacement {
 public:
  static constexpr std::size_t kMostValues = 4;

  explicit Replacement(Epochs& epochs)
      : epochs_(epochs), added_(1), next_(std::make_shared<Epoch>(epochs.state_, added_.begin())) {
    values_.reserve(kMostValues);
  }

  /// Takes a replaced value. At most kMostValues.
  void keep(std::shared_ptr<void> value) noexcept { values_.push_back(std::move(value)); }
  /// Keeps the values until the calls that have begun by now have ended. Call once, after all other calls.
  /// @return the number for which has_ended() is true after that.
  Number end() noexcept {
    Pin before;  // destroyed without the lock
    const MutexLock lock(epochs_.state_->mutex);
    std::list<Kept>& kept = epochs_.state_->kept;
    if (!kept.empty()) kept.back().values = std::move(values_);
    kept.splice(kept.end(), added_);
    before = std::exchange(epochs_.present_, std::move(next_));
    return epochs_.state_->first + kept.size() - 2;
  }

 private:
  Epochs& epochs_;
  std::vector<std::shared_ptr<void>> values_;
  std::list<Kept> added_;
  std::shared_ptr<Epoch> next_;
};

inline Epochs::Epochs() {
  static_cast<void>(Replacement(*this).end());
}

}  // namespace stfs
