// The server's side of all connections: leases on generations, and news for the peers.
//
// The server runs on one thread. No action or inaction of a peer makes it wait.
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

namespace stfs::serve {

struct LeaseServerOptions {
  /// A peer that connects and sends nothing for this long is dropped.
  std::chrono::milliseconds greeting_patience = std::chrono::seconds(5);
  /// Further connections are refused. Each connection uses one descriptor of the server.
  std::size_t max_connections = 512;
  /// The sources that reports name.
  std::vector<std::string> sources = {};
};

class LeaseServer {
 public:
  LeaseServer(ServeSocket socket, LeaseServerOptions options);
  LeaseServer(const LeaseServer&) = delete;
  LeaseServer& operator=(const LeaseServer&) = delete;

  /// Waits up to `patience` for peers, and answers all peers that have sent something.
  /// @param wake  a descriptor that ends the wait when it becomes readable; -1: none.
  /// @return the errors of poll(2).
  Result<void> serve_once(std::chrono::milliseconds patience, int wake = -1);

  /// Makes this generation the one that new leases get. Peers that hold an older generation are told.
  void publish(std::shared_ptr<const ServedModel> model);
  /// Tells lease holders why there is no newer generation. The same reason is told only once.
  /// @return true if the reason differs from the previous one.
  bool tell_stuck(const Error& why);
  /// Declares that there will be no first generation. Peers that wait for it are told the reason.
  void give_up(const Error& why);

  [[nodiscard]] const std::filesystem::path& path() const { return socket_.path(); }
  [[nodiscard]] std::size_t lease_count() const;
  /// Returns the JSON of a Report.
  [[nodiscard]] std::string report() const;

 private:
  [[nodiscard]] bool is_full() const { return connections_.size() >= options_.max_connections; }
  void welcome();
  void attend_all();
  [[nodiscard]] std::vector<std::shared_ptr<const ServedModel>> living_generations() const;

  ServeSocket socket_;
  LeaseServerOptions options_;
  ServeConnection::Clock::time_point started_ = ServeConnection::Clock::now();
  // When the table of descriptors is full, peers wait until this time, so that the server does not retry all
  // the time.
  ServeConnection::Clock::time_point accept_again_ = started_;
  ServeState state_;
  std::vector<std::weak_ptr<const ServedModel>> generations_;
  std::vector<std::unique_ptr<ServeConnection>> connections_;
};

}  // namespace stfs::serve
