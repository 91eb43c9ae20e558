// A server, its clients with leases, and the messages that they receive.
#pragma once

#include <poll.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/running_server.h"
#include "tests/support/served.h"
#include "tests/support/temporary_directory.h"
#include "tools/serve/serve_client.h"

namespace stfs::test {

/// A server whose generation 1 is the text "hello".
struct HelloServer {
  HelloServer() { server.publish(served_model(1, "hello")); }

  TemporaryDirectory directory;
  RunningServer server{directory / "s"};
};

/// A HelloServer with a client that holds a lease of generation 1.
struct LeasedServer : HelloServer {
  LeasedServer() { REQUIRE(lease); }

  Result<serve::Lease> lease = serve::Lease::attach(directory / "s");
};

inline std::string content_of(const serve::Lease& lease, std::size_t at) {
  const serve::LeasedTensor& tensor = lease.tensors()[at];
  const auto bytes =
      lease.arenas()[tensor.arena]->host_bytes().subspan(tensor.place.offset, tensor.place.size_bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The next message to a peer; fails the test after 20 s without one.
inline std::optional<serve::ReceivedMessage> next_message(int socket) {
  pollfd polled{socket, POLLIN, 0};
  REQUIRE(::poll(&polled, 1, 20'000) == 1);
  auto received = serve::receive_message(socket, serve::Incoming::Descriptors);
  REQUIRE(received);
  return std::move(*received);
}

inline serve::LeaseNews next_news(serve::Lease& lease) {
  pollfd polled{lease.descriptor(), POLLIN, 0};
  REQUIRE(::poll(&polled, 1, 20'000) == 1);
  auto news = lease.take_news();
  REQUIRE(news);
  return *news;
}

inline nlohmann::json report_of(const std::string& path) {
  const auto text = serve::query_server(path);
  REQUIRE(text);
  return nlohmann::json::parse(*text);
}

}  // namespace stfs::test
