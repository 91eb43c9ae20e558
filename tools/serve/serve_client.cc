// Attaches to a server: receives the Grant, its manifest, and the arenas that come with it.
#include "tools/serve/serve_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tools/device/backend.h"
#include "tools/serve/sealed_document.h"
#include "tools/serve/serve_message.h"
#include "tools/serve/serve_socket.h"

namespace stfs::upload {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kConnectPause{2};
/// A server accepts a full queue of connections within moments, so even an impatient client waits this long.
constexpr std::chrono::seconds kLeastConnectPatience{1};
/// A running server answers a Query at once.
constexpr std::chrono::seconds kQueryPatience{10};

/// An arena of another process. The lease lasts while any thread uses the arena, even after the Lease object
/// is gone.
class LeasedArena final : public Arena {
 public:
  LeasedArena(std::shared_ptr<Arena> arena, std::shared_ptr<void> lease)
      : lease_(std::move(lease)), arena_(std::move(arena)) {}

  [[nodiscard]] const Device& device() const override { return arena_->device(); }
  [[nodiscard]] std::uint64_t size_bytes() const override { return arena_->size_bytes(); }
  [[nodiscard]] void* address() const override { return arena_->address(); }
  [[nodiscard]] std::span<std::byte> host_bytes() override { return arena_->host_bytes(); }
  [[nodiscard]] bool is_read_only() const override { return true; }
  Result<UniqueFd> share() override {
    return fail(ErrorCode::InvalidArgument, ENOTSUP, "an arena of another process cannot be shared again");
  }

 private:
  std::shared_ptr<void> lease_;  // destroyed after the memory: the server may rely on this order
  std::shared_ptr<Arena> arena_;
};

Result<UniqueFd> connect_until(const std::filesystem::path& path, Clock::time_point deadline) {
  deadline = std::max(deadline, Clock::now() + kLeastConnectPatience);
  for (;;) {
    auto socket = connect_to_server(path);
    const bool is_crowded = !socket && socket.error().errno_value == EAGAIN;
    if (!is_crowded || Clock::now() >= deadline) return socket;
    std::this_thread::sleep_for(kConnectPause);
  }
}

/// Refuses a server of another user, because any user can bind a socket in /tmp and pose as a server. A
/// server of root is accepted, and a client of root accepts every server.
Result<void> check_server(int socket) {
  const auto peer = peer_of(socket);
  if (!peer) return tl::unexpected(peer.error());
  const uid_t self = ::geteuid();
  if (self == 0 || peer->uid == 0 || peer->uid == self) return {};
  return fail(ErrorCode::System, EPERM, fmt::format("is served by another user (uid {})", peer->uid));
}

Result<void> wait_readable(int socket, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd polled{socket, POLLIN, 0};
    const int ready = ::poll(&polled, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000)));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return fail_system(errno, "socket", "poll");
    if (Clock::now() >= deadline) {
      return fail(ErrorCode::System, ETIMEDOUT, "the server is still uploading its first generation");
    }
  }
}

/// Sends one request to a server and receives the answer.
Result<ReceivedMessage> ask(int socket, ServeKind question, ServeKind wanted, Clock::time_point deadline) {
  if (auto checked = check_server(socket); !checked) return pass_on(std::move(checked));
  // On EPIPE continue: a server that has closed the connection may have sent the reason before.
  if (auto sent = send_message(socket, ServeMessage{question}); !sent && sent.error().errno_value != EPIPE) {
    return pass_on(std::move(sent));
  }
  if (auto ready = wait_readable(socket, deadline); !ready) return pass_on(std::move(ready));
  auto received = receive_message(socket, Incoming::Descriptors);
  if (!received) return pass_on(std::move(received));
  if (!*received) return fail(ErrorCode::System, ECONNRESET, "the server has ended");
  const ServeMessage& message = (*received)->message;
  if (message.kind == ServeKind::Refusal) return fail(ErrorCode::System, message.errno_value, message.text);
  if (message.kind != wanted)
    return fail(ErrorCode::InvalidArgument, EPROTO, "the server has sent an unexpected message");
  return std::move(**received);
}

Result<std::string> document_of(const ReceivedMessage& received) {
  return read_document(received.descriptors.front().get(), received.message.document_bytes);
}

Result<std::shared_ptr<Arena>> adopt(const ManifestArena& arena, UniqueFd descriptor) {
  const auto device = parse_device(arena.device);
  if (!device) return tl::unexpected(device.error());
  const auto backend = Backend::open(*device);
  if (!backend) return tl::unexpected(backend.error());
  return (*backend)->adopt(std::move(descriptor), arena.size_bytes);
}

}  // namespace

class Lease::Connection {
 public:
  explicit Connection(UniqueFd socket) : socket_(std::move(socket)) {}
  [[nodiscard]] int descriptor() const { return socket_.get(); }
  void close() { const UniqueFd gone = std::move(socket_); }

 private:
  UniqueFd socket_;
};

Result<Lease> Lease::attach(const std::filesystem::path& socket, const AttachOptions& options) {
  const auto attach = [&]() -> Result<Lease> {
    const auto deadline = Clock::now() + options.patience;
    auto connected = connect_until(socket, deadline);
    if (!connected) return pass_on(std::move(connected));
    auto granted = ask(connected->get(), ServeKind::Attach, ServeKind::Grant, deadline);
    if (!granted) return tl::unexpected(std::move(granted.error()).within(socket.native()));
    auto lease = take_over(*granted, std::move(*connected));
    if (!lease) return tl::unexpected(std::move(lease.error()).within(socket.native()));
    std::error_code ignored;
    lease->socket_ = std::filesystem::absolute(socket, ignored);
    return lease;
  };
  return guard_memory(attach);
}

Result<Lease> Lease::take_over(ReceivedMessage& granted, UniqueFd socket) {
  const auto text = document_of(granted);
  if (!text) return tl::unexpected(text.error());
  auto manifest = parse_manifest(*text);
  if (!manifest) return pass_on(std::move(manifest));
  const bool fits = manifest->generation == granted.message.generation &&
                    manifest->arenas.size() + 1 == granted.descriptors.size();
  if (!fits) return fail(ErrorCode::InvalidArgument, EPROTO, "the manifest belongs to another generation");
  Lease lease;
  lease.manifest_ = std::move(*manifest);
  lease.told_generation_ = lease.generation();
  lease.connection_ = std::make_shared<Connection>(std::move(socket));
  for (std::size_t at = 0; at < lease.manifest_.arenas.size(); ++at) {
    auto arena = adopt(lease.manifest_.arenas[at], std::move(granted.descriptors[at + 1]));
    if (!arena) return pass_on(std::move(arena));
    lease.arenas_.push_back(std::make_shared<LeasedArena>(std::move(*arena), lease.connection_));
  }
  return lease;
}

int Lease::descriptor() const {
  return connection_->descriptor();
}

Result<LeaseNews> Lease::take_news() {
  LeaseNews news;
  while (connection_->descriptor() >= 0) {
    auto received = receive_message(connection_->descriptor(), Incoming::NoDescriptors);
    if (!received && received.error().errno_value == EAGAIN) return news;
    if (!received) {
      // The following messages of this server cannot be trusted, so treat the server as gone.
      connection_->close();
      return tl::unexpected(std::move(received.error()).within(socket_.native()));
    }
    if (!*received) {
      connection_->close();
      break;
    }
    const ServeMessage& message = (*received)->message;
    if (message.kind == ServeKind::Newer && message.generation > told_generation_) {
      news.newer_generation = told_generation_ = message.generation;
      news.why_stuck.clear();
    }
    if (message.kind == ServeKind::Stuck) news.why_stuck = message.text;
  }
  news.is_server_gone = true;
  return news;
}

Result<std::string> query_server(const std::filesystem::path& socket) {
  const auto deadline = Clock::now() + kQueryPatience;
  const auto connected = connect_until(socket, deadline);
  if (!connected) return tl::unexpected(connected.error());
  const auto answered = ask(connected->get(), ServeKind::Query, ServeKind::Report, deadline);
  if (!answered) return tl::unexpected(Error(answered.error()).within(socket.native()));
  auto text = document_of(*answered);
  if (!text) return tl::unexpected(std::move(text.error()).within(socket.native()));
  return text;
}

}  // namespace stfs::upload
