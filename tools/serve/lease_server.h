// The server's side of all connections: who holds a lease on which generation, and who is told what.
//
// One thread, and nothing that a peer does or leaves undone makes it wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tools/serve/serve_connection.h"
#include "tools/serve/serve_socket.h"
#include "tools/serve/served_model.h"

namespace stfs::upload {

struct LeaseServerOptions {
  /// A peer that connects and says nothing is dropped then.
  std::chrono::milliseconds greeting_patience = std::chrono::seconds(5);
  /// More are refused. Each takes one descriptor of ours.
  std::size_t max_connections = 512;
  /// For reports.
  std::vector<std::string> sources = {};
};

class LeaseServer {
 public:
  LeaseServer(ServeSocket socket, LeaseServerOptions options);
  LeaseServer(const LeaseServer&) = delete;
  LeaseServer& operator=(const LeaseServer&) = delete;

  /// Waits up to `patience` for peers, and answers all that have something to say.
  /// @param wake  a descriptor that ends the wait when it is readable; -1: none.
  /// @return the errors of poll(2).
  Result<void> serve_once(std::chrono::milliseconds patience, int wake = -1);

  /// From now on those who attach get this one; those who hold another one are told.
  void publish(std::shared_ptr<const ServedModel> model);
  /// Those who hold a lease are told why there is no newer generation; a reason that was told is not told
  /// again.
  /// @return whether it is another reason than before.
  bool tell_stuck(const Error& why);
  /// There will be no first generation: who waits for it is told why.
  void give_up(const Error& why);

  [[nodiscard]] const std::filesystem::path& path() const { return socket_.path(); }
  [[nodiscard]] std::size_t lease_count() const;
  /// JSON, for a Report.
  [[nodiscard]] std::string report() const;

 private:
  [[nodiscard]] bool is_full() const { return connections_.size() >= options_.max_connections; }
  void welcome();
  void attend_all();
  [[nodiscard]] std::vector<std::shared_ptr<const ServedModel>> living_generations() const;

  ServeSocket socket_;
  LeaseServerOptions options_;
  ServeConnection::Clock::time_point started_ = ServeConnection::Clock::now();
  // The table of descriptors may be full; peers wait until then, and nobody asks in vain all the time.
  ServeConnection::Clock::time_point accept_again_ = started_;
  ServeState state_;
  std::vector<std::weak_ptr<const ServedModel>> generations_;
  std::vector<std::unique_ptr<ServeConnection>> connections_;
};

}  // namespace stfs::upload
