// A server, clients that hold what it serves, and what they are told.
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

/// And a client that holds it.
struct LeasedServer : HelloServer {
  LeasedServer() { REQUIRE(lease); }

  Result<upload::Lease> lease = upload::Lease::attach(directory / "s");
};

inline std::string content_of(const upload::Lease& lease, std::size_t at) {
  const upload::LeasedTensor& tensor = lease.tensors()[at];
  const auto bytes =
      lease.arenas()[tensor.arena]->host_bytes().subspan(tensor.place.offset, tensor.place.size_bytes);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// What a peer is told next; fails the test where that takes too long.
inline std::optional<upload::ReceivedMessage> next_message(int socket) {
  pollfd polled{socket, POLLIN, 0};
  REQUIRE(::poll(&polled, 1, 20'000) == 1);
  auto received = upload::receive_message(socket, upload::Incoming::Descriptors);
  REQUIRE(received);
  return std::move(*received);
}

inline upload::LeaseNews next_news(upload::Lease& lease) {
  pollfd polled{lease.descriptor(), POLLIN, 0};
  REQUIRE(::poll(&polled, 1, 20'000) == 1);
  auto news = lease.take_news();
  REQUIRE(news);
  return *news;
}

inline nlohmann::json report_of(const std::string& path) {
  const auto text = upload::query_server(path);
  REQUIRE(text);
  return nlohmann::json::parse(*text);
}

}  // namespace stfs::test
