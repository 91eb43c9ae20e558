// One peer of a server, and how far it has come: silent, waiting for a generation, holding a lease, over.
//
// Nothing here waits. What a peer does not read is sent again later or not at all: news are kept as "how much
// this peer has been told", so that a peer that never reads costs no memory.
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

namespace stfs::upload {

/// What a server has to tell at the moment.
struct ServeState {
  std::shared_ptr<const ServedModel> newest;  // null: still uploading
  /// Why the archive's present state is not served; its number grows with every other reason.
  std::uint64_t stuck_number = 0;
  Error why_stuck;
  /// The text of a Report.
  std::function<std::string()> report;
};

/// Of one thread.
class ServeConnection {
 public:
  using Clock = std::chrono::steady_clock;

  /// @param refusal        what the peer is answered whatever it asks for.
  /// @param greet_until    it has to say something by then.
  ServeConnection(ServeSocket::Connection connection, std::optional<Error> refusal,
                  Clock::time_point greet_until);

  [[nodiscard]] int descriptor() const { return socket_.get(); }
  [[nodiscard]] const Peer& peer() const { return peer_; }
  /// Name of the peer's program, as it was when it connected; empty where that can't be known.
  [[nodiscard]] const std::string& program() const { return program_; }
  [[nodiscard]] Clock::time_point since() const { return since_; }
  /// The generation that it holds, or null.
  [[nodiscard]] const std::shared_ptr<const ServedModel>& leased() const { return leased_; }

  /// Takes one packet where there is one, then tells what the peer has not been told.
  void attend(const ServeState& state, Clock::time_point now);
  /// To be dropped.
  [[nodiscard]] bool is_over() const { return stage_ == Stage::Over; }
  /// Ends a wait for a generation that will never be there.
  void give_up(const Error& why);

 private:
  enum class Stage : std::uint8_t { Greeting, Waiting, Leased, Over };

  void take_request(const ServeState& state);
  void answer(ServeKind kind, const ServeState& state);
  void report(const ServeState& state);
  void refuse(const Error& why);
  void grant(const std::shared_ptr<const ServedModel>& model);
  void tell_news(const ServeState& state);
  /// Whether it has arrived; a peer that has gone is over.
  bool send(const ServeMessage& message, std::span<const int> descriptors = {});

  UniqueFd socket_;
  Peer peer_;
  std::string program_;
  std::optional<Error> refusal_;
  Clock::time_point since_ = Clock::now();
  Clock::time_point greet_until_;
  Stage stage_ = Stage::Greeting;
  std::shared_ptr<const ServedModel> leased_;
  std::uint64_t told_generation_ = 0;
  std::uint64_t told_stuck_number_ = 0;
};

}  // namespace stfs::upload
