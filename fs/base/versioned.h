// Values that are replaced while calls use them, and when the values of before may go.
//
// An edit through the mount changes which tensors there are, and where. What depends on that is an immutable
// value: the model, its names, its views. The edit makes the next value and replaces the one of before. Calls
// that have begun earlier may still use the one of before, so it stays until the last of them has ended.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace stfs {

/// Any thread may read; one thread at a time replaces. What a call reads stays valid while the call has a
/// pin of the Epochs that the earlier values are given to.
template <class T>
class Versioned {
 public:
  explicit Versioned(std::shared_ptr<T> first) : owner_(std::move(first)), present_(owner_.get()) {}

  T* operator->() const { return present_.load(std::memory_order_acquire); }
  T& operator*() const { return *present_.load(std::memory_order_acquire); }
  /// The present value. For the thread that replaces it.
  [[nodiscard]] const std::shared_ptr<T>& owner() const { return owner_; }
  /// @return the value of before.
  [[nodiscard]] std::shared_ptr<T> replace(std::shared_ptr<T> next) {
    present_.store(next.get(), std::memory_order_release);
    return std::exchange(owner_, std::move(next));
  }

 private:
  std::shared_ptr<T> owner_;
  std::atomic<T*> present_;
};

/// Keeps replaced values for the calls that began before. Any thread may call.
class Epochs {
  struct Epoch {
    Epoch() = default;
    ~Epoch() {
      // One by one: a chain of many must not end by recursion.
      while (next && next.use_count() == 1) next = std::shared_ptr<Epoch>(std::move(next->next));
    }
    Epoch(const Epoch&) = delete;
    Epoch& operator=(const Epoch&) = delete;
    std::vector<std::shared_ptr<void>> retired;
    std::shared_ptr<Epoch> next;  // so that it ends after this one
  };

 public:
  using Pin = std::shared_ptr<const void>;
  /// Hold it for the length of a call, from before the first value is read.
  [[nodiscard]] Pin pin() const {
    const std::scoped_lock lock(mutex_);
    return present_;
  }
  /// Keeps values that were replaced until the calls that have begun by now have ended.
  /// @return expires then.
  std::weak_ptr<const void> retire(std::vector<std::shared_ptr<void>> values) {
    auto next = std::make_shared<Epoch>();
    std::shared_ptr<Epoch> before;  // declared first: it may end, without the lock
    const std::scoped_lock lock(mutex_);
    before = std::exchange(present_, next);
    before->retired = std::move(values);
    before->next = std::move(next);
    return before;
  }

 private:
  mutable std::mutex mutex_;  // guards what follows; innermost
  std::shared_ptr<Epoch> present_ = std::make_shared<Epoch>();
};

}  // namespace stfs
