#include "fs/kernel/slow_requests.h"

#include <algorithm>
#include <system_error>

#include "core/base/mutex.h"

namespace stfs {

void SlowRequests::run_elsewhere(Request request) {
  {
    const MutexLock lock(mutex_);
    if (enqueue(request)) return;
  }
  request.work();
}

bool SlowRequests::enqueue(Request& request) {
  if (is_stopping_ || (request.is_given_up && request.is_given_up())) return false;
  try {
    std::deque<Request>& queue = users_[request.user].queue;
    queue.push_back(std::move(request));
    call_thread();
    if (!threads_.empty()) return true;
    request = std::move(queue.back());
    queue.pop_back();
  } catch (const std::bad_alloc&) {  // no request was moved then
  }
  return false;
}

SlowRequests::Users::iterator SlowRequests::next_user() {
  auto user = users_.upper_bound(last_);
  for (std::size_t left = users_.size(); left > 0; --left, ++user) {
    if (user == users_.end()) user = users_.begin();
    const bool has_share = is_stopping_ || user->second.running < most_threads_ - running_;
    if (has_share && !user->second.queue.empty()) return user;
  }
  return users_.end();
}

void SlowRequests::call_thread() {
  if (next_user() == users_.end()) return;
  if (idle_ > 0 || is_stopping_ || threads_.size() == most_threads_) return wakes_.notify_one();
  try {
    threads_.emplace_back([this] { serve(); });
  } catch (const std::system_error&) {  // then an existing thread does the work
  } catch (const std::bad_alloc&) {
  }
}

void SlowRequests::serve() {
  MutexLock lock(mutex_);
  for (;;) {
    ++idle_;
    wakes_.wait(mutex_, [this]() REQUIRES(mutex_) { return is_stopping_ || next_user() != users_.end(); });
    --idle_;
    const auto user = next_user();
    if (user == users_.end()) return;
    last_ = user->first;
    std::deque<Request>& queue = user->second.queue;
    {
      const Request request = std::move(queue.front());
      queue.pop_front();
      ++user->second.running;
      ++running_;
      call_thread();  // for the next request
      lock.unlock();
      request.work();
    }
    lock.lock();
    --running_;
    if (--user->second.running == 0 && queue.empty()) users_.erase(user);
  }
}

std::function<void()> SlowRequests::take_back(uid_t user, const void* id) {
  const MutexLock lock(mutex_);
  const auto its = users_.find(user);
  if (its == users_.end()) return {};
  std::deque<Request>& queue = its->second.queue;
  const auto found = std::ranges::find(queue, id, &Request::id);
  if (found == queue.end()) return {};
  std::function<void()> work = std::move(found->work);
  queue.erase(found);
  if (its->second.running == 0 && queue.empty()) users_.erase(its);
  return work;
}

void SlowRequests::stop() {
  std::vector<std::thread> ending;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    ending = std::exchange(threads_, {});
  }
  wakes_.notify_all();
  for (std::thread& thread : ending) thread.join();
}

}  // namespace stfs
