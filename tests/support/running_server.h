// Runs a server of stfs serve on a thread of the test, and functions of the test on that thread.
#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "tools/serve/lease_server.h"

namespace stfs::test {

class RunningServer {
 public:
  explicit RunningServer(const std::filesystem::path& path, serve::LeaseServerOptions options = {}) {
    auto socket = serve::ServeSocket::listen(path);
    if (!socket) throw std::runtime_error(socket.error().message);
    server_ = std::make_unique<serve::LeaseServer>(std::move(*socket), std::move(options));
    thread_ = std::thread([this] { run(); });
  }
  ~RunningServer() { end(); }
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;

  /// Runs a function on the server's thread and gives its result.
  template <class Function>
  auto with(Function function) {
    using Value = decltype(function(*server_));
    std::packaged_task<Value()> task([&] { return function(*server_); });
    auto result = task.get_future();
    {
      const std::lock_guard lock(mutex_);
      tasks_.emplace_back([&task] { task(); });
    }
    ::eventfd_write(wake_.get(), 1);
    return result.get();
  }

  void publish(std::shared_ptr<const serve::ServedModel> model) {
    with([&](serve::LeaseServer& server) { server.publish(std::move(model)); });
  }
  std::size_t leases() {
    return with([](serve::LeaseServer& server) { return server.lease_count(); });
  }

  void end() {
    if (!thread_.joinable()) return;
    is_ending_ = true;
    ::eventfd_write(wake_.get(), 1);
    thread_.join();
    server_.reset();
  }

 private:
  void run() {
    while (!is_ending_) {
      if (!server_->serve_once(std::chrono::seconds(1), wake_.get())) return;
      eventfd_t ignored = 0;
      ::eventfd_read(wake_.get(), &ignored);
      std::vector<std::function<void()>> tasks;
      {
        const std::lock_guard lock(mutex_);
        tasks.swap(tasks_);
      }
      for (const auto& task : tasks) task();
    }
  }

  std::unique_ptr<serve::LeaseServer> server_;
  UniqueFd wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::atomic<bool> is_ending_ = false;
  std::mutex mutex_;  // guards the next
  std::vector<std::function<void()>> tasks_;
  std::thread thread_;
};

/// Waits for a condition that becomes true by itself.
template <class Condition>
bool eventually(Condition&& condition, std::chrono::milliseconds patience = std::chrono::seconds(20)) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace stfs::test
