// The server's side of one peer, and the state of that peer: silent, waiting for a generation, holding a
// lease, asking for a newer one, over.
//
// No function here waits. A message that a peer does not read is sent again later or not at all. For news,
// the connection only stores which news the peer has got, so a peer that never reads costs no memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "tools/serve/serve_message.h"
#include "tools/serve/serve_socket.h"
#include "tools/serve/served_model.h"

namespace stfs::serve {

/// The server's present news for all peers.
struct ServeState {
  std::shared_ptr<const ServedModel> newest;  // null: still uploading
  /// The reason why the archive's present state is not served. The number grows with each different reason.
  std::uint64_t stuck_number = 0;
  Error why_stuck;
  /// Returns the text of a Report.
  std::function<std::string()> report;
};

/// Used by one thread.
class ServeConnection {
 public:
  using Clock = std::chrono::steady_clock;

  /// @param refusal        if set, the answer to any request of this peer.
  /// @param greet_until    before this time the peer must send its first packet, and must read a report that
  ///                       it asks for.
  ServeConnection(ServeSocket::Connection connection, std::optional<Error> refusal,
                  Clock::time_point greet_until);

  [[nodiscard]] int descriptor() const { return socket_.get(); }
  [[nodiscard]] const Peer& peer() const { return peer_; }
  /// The name of the peer's program at the time of the connection; empty: unknown.
  [[nodiscard]] const std::string& program() const { return program_; }
  [[nodiscard]] Clock::time_point since() const { return since_; }
  /// The generation that the peer holds, or null.
  [[nodiscard]] const std::shared_ptr<const ServedModel>& leased() const { return leased_; }

  /// The events of poll(2) to wait for.
  [[nodiscard]] short events() const;
  /// Receives one packet, if there is one. Then sends the news that the peer has not got yet.
  void attend(const ServeState& state, Clock::time_point now);
  /// Returns true if the server must drop this connection.
  [[nodiscard]] bool is_over() const { return stage_ == Stage::Over; }
  /// Ends the peer's wait for a generation that will never exist.
  void give_up(const Error& why);

 private:
  /// Renewing: holds a lease, and has asked for the newest generation. Reporting: a report is being sent.
  enum class Stage : std::uint8_t { Greeting, Waiting, Leased, Renewing, Reporting, Over };

  void take_request(const ServeState& state);
  void answer(ServeKind kind, const ServeState& state);
  void begin_report(const ServeState& state);
  /// Sends as much of the report as the socket takes.
  void send_report();
  void refuse(const Error& why);
  void grant(const std::shared_ptr<const ServedModel>& model);
  void tell_news(const ServeState& state);
  /// Returns true if the message was sent. If the peer has disconnected, the connection is over.
  bool send(const ServeMessage& message, std::span<const int> descriptors = {});

  UniqueFd socket_;
  Peer peer_;
  std::string program_;
  std::optional<Error> refusal_;
  Clock::time_point since_ = Clock::now();
  Clock::time_point greet_until_;
  Stage stage_ = Stage::Greeting;
  std::string report_;
  std::size_t reported_bytes_ = 0;
  std::shared_ptr<const ServedModel> leased_;
  std::uint64_t told_generation_ = 0;
  std::uint64_t told_stuck_number_ = 0;
};

}  // namespace stfs::serve
